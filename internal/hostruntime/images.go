package hostruntime

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

const (
	criNamespace = "k8s.io"
	// pinned keeps an image from the image garbage collection of containerd's clients.
	pinned = "io.cri-containerd.pinned=pinned"
	// importTimeout bounds the time from the import until the image shows in CRI, whose store follows containerd's events.
	importTimeout = 10 * time.Second
)

// ImportImage makes the image of an archive present and pins it. It does nothing if that was done with the same archive before and
// the image is still there.
func (r *Runtime) ImportImage(ctx context.Context, image Image) error {
	info, err := os.Stat(image.Archive)
	if err != nil {
		return fmt.Errorf("import image %s: %w", image.Name, err)
	}
	mark := filepath.Join(r.config.importedDir(), fmt.Sprintf("%x", sha256.Sum256([]byte(image.Name))))
	want := fmt.Sprintf("%s %s %d %d\n", image.Name, image.Archive, info.Size(), info.ModTime().UnixNano())
	client, err := cri.Dial(ctx, r.Endpoint(), cri.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if content, err := os.ReadFile(mark); err == nil && string(content) == want {
		_, err := client.ImageStatus(ctx, cri.ImageSpec{Image: image.Name})
		if err == nil {
			return nil
		}
		if fault.KindOf(err) != fault.NotFound {
			return err
		}
	}
	if err := r.ctr(ctx, "images", "import", "--label", pinned, image.Archive); err != nil {
		return fmt.Errorf("import image %s: %w", image.Name, err)
	}
	if err := waitImage(ctx, client, image.Name); err != nil {
		return err
	}
	if err := writeFile(mark, want); err != nil {
		return fmt.Errorf("note import of image %s: %w", image.Name, err)
	}
	return nil
}

func waitImage(ctx context.Context, client cri.ImageService, name string) error {
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for {
		_, err := client.ImageStatus(ctx, cri.ImageSpec{Image: name})
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("image %s was imported and does not show in CRI: %w", name, err), ctx.Err())
		}
	}
}

// ctr calls containerd's command line, so that its client library is not part of this program.
func (r *Runtime) ctr(ctx context.Context, args ...string) error {
	args = append([]string{"--address", r.config.Socket(), "--namespace", criNamespace}, args...)
	out, err := exec.CommandContext(ctx, r.config.program("ctr"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr: %w: %s", err, out)
	}
	return nil
}
