"""Where a model's files are. `resolve(uri)` gives a local path; it never imports the model's code.

package://MODULE/FILE   a file inside an installed Python package
file:///PATH, PATH      a file of this machine
"""

from octavo_fetch.sources import ModelNotFoundError, resolve

__all__ = ["ModelNotFoundError", "resolve"]
