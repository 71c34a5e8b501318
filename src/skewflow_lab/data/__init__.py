"""Real data: MNIST, CIFAR-10, the digits that scikit-learn ships, and QAPLIB."""

from .images import NAMES as NAMES
from .images import SOURCES as SOURCES
from .images import Digits as Digits
from .images import Images as Images
from .images import default_images as default_images
from .images import load_digits_part as load_digits_part
from .images import load_images as load_images
from .qaplib import Instances as Instances
from .qaplib import default_instances as default_instances
from .qaplib import instance_names as instance_names
from .qaplib import load_instance as load_instance
