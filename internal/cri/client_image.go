package cri

import (
	"context"
	"errors"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/podplane/podplane/internal/fault"
)

// PullImage implements [ImageService].
func (c *Client) PullImage(ctx context.Context, image ImageSpec, auth *AuthConfig, sandbox *SandboxConfig) (string, error) {
	op := c.imageOp(opPullImage, image.Image).within(0)
	req := &runtimeapi.PullImageRequest{Image: toImageSpec(image), Auth: toAuth(auth)}
	if sandbox != nil {
		op.podUID = sandbox.UID
		req.SandboxConfig = c.sandboxConfig(sandbox)
	}
	resp, err := invoke(ctx, c, op, c.images.PullImage, req)
	if err != nil {
		var call *CallError
		if errors.As(err, &call) && fault.Is(err, fault.Internal) {
			call.Err = fault.Wrap(pullKind(call.Err.Error()), call.Err)
		}
		return "", &ImageError{Image: image.Image, Reason: pullReason(err), Err: err}
	}
	return resp.GetImageRef(), nil
}

// pullKinds are the words in which containerd passes on why a registry did not give an image: it has no codes for it.
var pullKinds = []struct {
	words string
	kind  fault.Kind
}{
	{"401 Unauthorized", fault.Unauthenticated},
	{"authorization failed", fault.Unauthenticated},
	{"403 Forbidden", fault.PermissionDenied},
	{"429 Too Many Requests", fault.ResourceExhausted},
	{"500 Internal Server Error", fault.Unavailable},
	{"502 Bad Gateway", fault.Unavailable},
	{"503 Service Unavailable", fault.Unavailable},
	{"504 Gateway Timeout", fault.Unavailable},
	{"connection refused", fault.Unavailable},
	{"no such host", fault.Unavailable},
	{"network is unreachable", fault.Unavailable},
	{"i/o timeout", fault.Unavailable},
	{"connection reset by peer", fault.Unavailable},
	{": EOF", fault.Unavailable},
	{"unexpected EOF", fault.Unavailable},
	{"no space left on device", fault.ResourceExhausted},
}

func pullKind(message string) fault.Kind {
	for _, p := range pullKinds {
		if strings.Contains(message, p.words) {
			return p.kind
		}
	}
	return fault.Internal
}

// pullReason finds the waiting reason: CRI defines two words that a runtime puts into the message.
func pullReason(err error) string {
	switch msg := err.Error(); {
	case fault.Is(err, fault.Invalid):
		return ReasonInvalidImageName
	case strings.Contains(msg, crierrors.ErrRegistryUnavailable.Error()):
		return ReasonRegistryUnavailable
	case strings.Contains(msg, crierrors.ErrSignatureValidationFailed.Error()):
		return ReasonSignatureValidationFailed
	default:
		return ReasonErrImagePull
	}
}

// ImageStatus implements [ImageService].
func (c *Client) ImageStatus(ctx context.Context, image ImageSpec) (Image, error) {
	op := c.imageOp(opImageStatus, image.Image)
	resp, err := invoke(ctx, c, op, c.images.ImageStatus, &runtimeapi.ImageStatusRequest{Image: toImageSpec(image)})
	if err != nil {
		return Image{}, err
	}
	if resp.GetImage() == nil {
		return Image{}, &CallError{Op: op.name, Target: op.target, Err: fault.New(fault.NotFound, "image is not present")}
	}
	return fromImage(resp.GetImage()), nil
}

// ListImages implements [ImageService].
func (c *Client) ListImages(ctx context.Context) ([]Image, error) {
	op := c.runtimeOp(opListImages, "")
	resp, err := invoke(ctx, c, op, c.images.ListImages, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	images := make([]Image, 0, len(resp.GetImages()))
	for _, i := range resp.GetImages() {
		images = append(images, fromImage(i))
	}
	return images, nil
}

// RemoveImage implements [ImageService].
func (c *Client) RemoveImage(ctx context.Context, image ImageSpec) error {
	op := c.imageOp(opRemoveImage, image.Image)
	_, err := invoke(ctx, c, op, c.images.RemoveImage, &runtimeapi.RemoveImageRequest{Image: toImageSpec(image)})
	return gone(err)
}

// ImageFsInfo implements [ImageService].
func (c *Client) ImageFsInfo(ctx context.Context) (ImageFsInfo, error) {
	op := c.runtimeOp(opImageFsInfo, "")
	resp, err := invoke(ctx, c, op, c.images.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return ImageFsInfo{}, err
	}
	return ImageFsInfo{
		Images:     fromFilesystems(resp.GetImageFilesystems()),
		Containers: fromFilesystems(resp.GetContainerFilesystems()),
	}, nil
}
