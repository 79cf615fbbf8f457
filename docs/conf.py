"""Settings of Sphinx, which makes a site of this folder. scripts/docs runs it; docs/log.md says why it is Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from fastscribe.version import __version__  # noqa: E402

project = "fastscribe"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
smartquotes = False  # would make one dash of the two before an option

myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_mock_imports = ["pyarrow", "ray"]  # of the extra ray
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = f"fastscribe {__version__}"
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navigation_depth": 2,
    "show_nav_level": 2,
}
