"""Reading packed datasets: datasets, transforms, formats, the loader, DALI, back ends, monitoring and tuning."""
