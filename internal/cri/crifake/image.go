package crifake

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/podplane/podplane/internal/cri"
	"github.com/podplane/podplane/internal/fault"
)

// RemoteImage is an image that can be pulled.
type RemoteImage struct {
	// Image has what is set here; ID, tags and digests are made up when empty.
	Image cri.Image
	// Auth, when not nil, is what a pull must bring.
	Auth *cri.AuthConfig
	// Takes is how long a pull takes.
	Takes time.Duration
}

// AddRemoteImage makes an image pullable.
func (r *Runtime) AddRemoteImage(ref string, image RemoteImage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remote[normalize(ref)] = image
}

// AddImage makes an image present, and returns its ID.
func (r *Runtime) AddImage(ref string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.addImage(normalize(ref), cri.Image{}).ID
}

var reference = regexp.MustCompile(`^[a-z0-9][a-z0-9._/:-]*(:[A-Za-z0-9._-]+)?(@sha256:[a-f0-9]{64})?$`)

// normalize completes a reference as container runtimes do.
func normalize(ref string) string {
	first, _, slash := strings.Cut(ref, "/")
	switch {
	case !slash:
		ref = "docker.io/library/" + ref
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		ref = "docker.io/" + ref
	}
	if last := ref[strings.LastIndex(ref, "/")+1:]; !strings.ContainsAny(last, ":@") {
		ref += ":latest"
	}
	return ref
}

// repository cuts tag and digest off.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		ref = ref[:i]
	}
	return ref
}

// addImage stores an image under a normalized reference. The caller holds the mutex.
func (s *store) addImage(ref string, image cri.Image) *cri.Image {
	if image.ID == "" {
		image.ID = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("config "+ref)))
	}
	if len(image.RepoTags) == 0 {
		image.RepoTags = []string{ref}
	}
	if len(image.RepoDigests) == 0 {
		image.RepoDigests = []string{fmt.Sprintf("%s@sha256:%x", repository(ref), sha256.Sum256([]byte(ref)))}
	}
	if image.Size == 0 {
		image.Size = 1 << 20
	}
	s.images[ref] = &image
	return &image
}

// findImage finds an image by reference, digest or ID. The caller holds the mutex.
func (s *store) findImage(ref string) *cri.Image {
	if image := s.images[normalize(ref)]; image != nil {
		return image
	}
	for _, image := range s.images {
		if image.ID == ref || strings.TrimPrefix(image.ID, "sha256:") == ref || slices.Contains(image.RepoDigests, ref) {
			return image
		}
	}
	return nil
}

func imageRef(image *cri.Image) string {
	if len(image.RepoDigests) > 0 {
		return image.RepoDigests[0]
	}
	return image.ID
}

// PullImage implements [cri.ImageService].
func (r *Runtime) PullImage(ctx context.Context, image cri.ImageSpec, auth *cri.AuthConfig, _ *cri.SandboxConfig) (string, error) {
	const op = "pull_image"
	fail := func(err error, reason string) (string, error) {
		return "", &cri.ImageError{Image: image.Image, Reason: reason, Err: err}
	}
	if err := r.enter(ctx, op, image.Image); err != nil {
		return fail(err, cri.ReasonErrImagePull)
	}
	if !reference.MatchString(image.Image) {
		return fail(callError(op, image.Image, fault.Invalid, "invalid reference format"), cri.ReasonInvalidImageName)
	}
	ref := normalize(image.Image)
	r.mu.Lock()
	remote, ok := r.remote[ref]
	r.mu.Unlock()
	if !ok && !r.anyImage {
		return fail(callError(op, image.Image, fault.NotFound, "failed to resolve reference %q: not found", ref), cri.ReasonErrImagePull)
	}
	if want := remote.Auth; want != nil && (auth == nil || auth.Username != want.Username || auth.Password != want.Password) {
		return fail(callError(op, image.Image, fault.Unauthenticated, "pull access denied"), cri.ReasonErrImagePull)
	}
	if remote.Takes > 0 {
		if err := r.wait(ctx, remote.Takes); err != nil {
			return fail(&cri.CallError{Op: op, Target: image.Image, Err: err}, cri.ReasonErrImagePull)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.store.addImage(ref, remote.Image).ID, nil
}

// ImageStatus implements [cri.ImageService].
func (r *Runtime) ImageStatus(ctx context.Context, image cri.ImageSpec) (cri.Image, error) {
	if err := r.enter(ctx, "image_status", image.Image); err != nil {
		return cri.Image{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.findImage(image.Image)
	if found == nil {
		return cri.Image{}, callError("image_status", image.Image, fault.NotFound, "image is not present")
	}
	return *found, nil
}

// ListImages implements [cri.ImageService].
func (r *Runtime) ListImages(ctx context.Context) ([]cri.Image, error) {
	if err := r.enter(ctx, "list_images", ""); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []cri.Image{}
	for _, image := range r.images {
		list = append(list, *image)
	}
	slices.SortFunc(list, func(a, b cri.Image) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// RemoveImage implements [cri.ImageService].
func (r *Runtime) RemoveImage(ctx context.Context, image cri.ImageSpec) error {
	if err := r.enter(ctx, "remove_image", image.Image); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.findImage(image.Image)
	for ref, other := range r.images {
		if other == found {
			delete(r.images, ref)
		}
	}
	return nil
}

// ImageFsInfo implements [cri.ImageService].
func (r *Runtime) ImageFsInfo(ctx context.Context) (cri.ImageFsInfo, error) {
	if err := r.enter(ctx, "image_fs_info", ""); err != nil {
		return cri.ImageFsInfo{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.imageFs, nil
}

// Downloads implements [cri.DownloadLister]: this runtime does not tell.
func (r *Runtime) Downloads(ctx context.Context) ([]cri.Download, error) {
	if err := r.enter(ctx, "list_downloads", ""); err != nil {
		return nil, err
	}
	return nil, callError("list_downloads", "", fault.Unimplemented, "downloads are not listed")
}

// SetImageFsInfo changes what ImageFsInfo answers.
func (r *Runtime) SetImageFsInfo(info cri.ImageFsInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.imageFs = info
}
