"""Suites of tests for transforms, orders, datasets and folders of one's own; needs the extra ``packtrain[testing]``."""

from packtrain._testing.dataset import DatasetContract as DatasetContract
from packtrain._testing.dataset import Sample as Sample
from packtrain._testing.loading import LoadingContract as LoadingContract
from packtrain._testing.order import OrderContract as OrderContract
from packtrain._testing.transform import TransformContract as TransformContract

__all__ = ["DatasetContract", "LoadingContract", "OrderContract", "Sample", "TransformContract"]
