from dsv_example_plugin import augmentation, selector

from dsv_plugins.testing import parametrize_with_checks


@parametrize_with_checks([augmentation(), selector()])
def test_conformance(check):
    check()
