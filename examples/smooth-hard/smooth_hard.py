import torch
import torch.nn.functional as F


class SmoothHardLoss(torch.nn.Module):
    """Bring the hardest positive of each anchor nearer than its hardest negative, smoothly."""

    kind = "pair"
    cost = "N²"
    normalises = True

    def __init__(self, scale: float = 16.0, margin: float = 0.2) -> None:
        super().__init__()
        self.scale = scale
        self.margin = margin

    def forward(self, embeddings, labels):
        f = F.normalize(embeddings)
        cosine = self.scale * f @ f.T
        same = labels[:, None] == labels
        other = same.clone().fill_diagonal_(False)
        positive = torch.logsumexp((-cosine).masked_fill(~other, -torch.inf), 1)
        negative = torch.logsumexp(cosine.masked_fill(same, -torch.inf), 1)
        gap = positive + negative + self.scale * self.margin
        return F.softplus(gap).mean() / self.scale
