"""plain: the array's own bytes, as without any setting. For `--vary wire.prototypes=plain,float16,int8`."""

from fedsim.encodings import base


class Encoding(base.Encoding):
    is_lossless = True
