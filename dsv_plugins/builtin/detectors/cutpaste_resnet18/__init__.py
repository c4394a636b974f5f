"""`cutpaste-resnet18`, the detector of the paper."""
