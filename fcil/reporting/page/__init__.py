"""The report: one HTML page that needs nothing else, made of one module per section."""

from fcil.reporting.page.shell import FILE, page, plotly_code, title_of

__all__ = ["FILE", "page", "plotly_code", "title_of"]
