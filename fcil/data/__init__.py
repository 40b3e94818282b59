"""Who holds which samples when: sources, class orders, the scenario, exemplar memory and augmentation."""
