"""Images to train on: MNIST, CIFAR-10, and the small set that scikit-learn ships."""

from .images import NAMES as NAMES
from .images import SOURCES as SOURCES
from .images import Digits as Digits
from .images import Images as Images
from .images import default_images as default_images
from .images import load_digits_part as load_digits_part
from .images import load_images as load_images
