"""timm and torchvision: a model of each, and a detection model in pieces."""

import pytest
import timm
import torch
import torchvision
from torch import nn
from torch._dynamo.utils import counters
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator

from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics
from xla_dynamo.torchvision_operators import declare_missing_operators


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    metrics.clear_all()
    counters.clear()


def test_timm():
    torch.manual_seed(0)
    expected_model = timm.create_model("test_resnet", pretrained=False).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = expected_model(images)
    torch.manual_seed(0)
    names = run_recipe("timm", images=images)
    torch.testing.assert_close(names["logits"], expected, atol=1e-5, rtol=1e-4)
    assert metrics.counter_value("UncachedCompile") == 1


def plain_nms(boxes, scores, iou_threshold):
    """Non-maximum suppression as torchvision's kernel does it."""
    overlaps = torchvision.ops.box_iou(boxes, boxes)
    gone = torch.zeros(len(boxes), dtype=torch.bool)
    kept = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if not gone[index]:
            kept.append(index)
            gone |= overlaps[index] > iou_threshold
    return torch.tensor(kept, dtype=torch.int64)


@pytest.fixture
def operators(monkeypatch):
    """Torchvision's operators, in Python where its compiled ones do not load."""
    if not declare_missing_operators():
        yield
        return
    with torch.library._scoped_library("torchvision", "IMPL") as library:
        library.impl("nms", plain_nms, "CPU")
        monkeypatch.setattr(torchvision.ops.boxes, "_assert_has_ops", lambda: None)
        yield


class Backbone(nn.Sequential):
    out_channels = 16

    def __init__(self):
        first = nn.Conv2d(3, 16, 3, stride=4, padding=1)
        super().__init__(first, nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU())


def detector():
    torch.manual_seed(0)
    model = RetinaNet(
        Backbone(),
        num_classes=4,
        min_size=64,
        max_size=64,
        anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0),)),
        topk_candidates=20,
        detections_per_img=10,
    )
    with torch.no_grad():  # scores that differ, so that rounding does not change their order
        scores = model.head.classification_head.cls_logits
        scores.weight.mul_(30)
        scores.bias.zero_()
    return model.eval()


@pytest.mark.usefixtures("operators")
def test_detection():
    model = detector()
    images = [torch.rand(3, 64, 64)]
    with torch.no_grad():
        expected = model(images)
    found = run_recipe("torchvision detection", model=model, images=images)["found"]
    assert len(expected[0]["boxes"]) > 3
    assert len(expected[0]["scores"].unique()) > 3
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] > 1
    assert metrics.counter_value("UncachedCompile") > 1
