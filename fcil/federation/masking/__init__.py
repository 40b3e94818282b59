"""Masked sums after Bonawitz et al. (CCS 2017): the server learns the sum of reports and no report by itself."""
