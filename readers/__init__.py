"""Reading packed datasets: datasets, transforms, formats, the loader, its monitoring and its tuning."""
