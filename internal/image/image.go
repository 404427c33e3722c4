// Package image builds small container images from files on this host: the pause image and the demo image that a node without a
// registry starts from, and the images of the tests. An image is one layer over nothing, and the same input gives the same
// digest.
package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// File is one entry of an image.
type File struct {
	// Source is the path on this host of a regular file; empty when Content or Target says what the entry is.
	Source string
	// Content is the file's content when there is no Source.
	Content []byte
	// Target makes the entry a symbolic link.
	Target string
	// Mode holds the permission bits and, with fs.ModeDir, makes the entry a directory.
	Mode fs.FileMode
}

// Spec says what an image holds and runs.
type Spec struct {
	// Files by absolute path inside the image. Parent directories are made as needed.
	Files map[string]File
	// Entrypoint, Cmd, Env, User, WorkingDir, StopSignal and Labels are the fields of the image's configuration.
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
	WorkingDir string
	StopSignal string
	Labels     map[string]string
	// Volumes are the paths that the image declares as volumes.
	Volumes []string
	// Architecture is GOARCH's name of the platform that the files are for.
	Architecture string
}

// Build makes the image.
func Build(spec Spec) (v1.Image, error) {
	layer, err := layerOf(spec.Files)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("append layer: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image configuration: %w", err)
	}
	config = config.DeepCopy()
	config.OS = "linux"
	config.Architecture = spec.Architecture
	config.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	config.Config = v1.Config{
		Entrypoint: spec.Entrypoint,
		Cmd:        spec.Cmd,
		Env:        spec.Env,
		User:       spec.User,
		WorkingDir: spec.WorkingDir,
		StopSignal: spec.StopSignal,
		Labels:     spec.Labels,
	}
	if len(spec.Volumes) > 0 {
		config.Config.Volumes = make(map[string]struct{}, len(spec.Volumes))
		for _, v := range spec.Volumes {
			config.Config.Volumes[v] = struct{}{}
		}
	}
	img, err = mutate.ConfigFile(img, config)
	if err != nil {
		return nil, fmt.Errorf("set image configuration: %w", err)
	}
	return img, nil
}

func layerOf(files map[string]File) (v1.Layer, error) {
	var buf bytes.Buffer
	if err := writeTar(&buf, files); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return layer, nil
}

func writeTar(w io.Writer, files map[string]File) error {
	names := make([]string, 0, len(files))
	for name := range files {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return fmt.Errorf("image path %q: not a clean absolute path", name)
		}
		names = append(names, name)
	}
	sort.Strings(names)
	tw := tar.NewWriter(w)
	made := map[string]bool{"/": true}
	for _, name := range names {
		if err := writeParents(tw, name, files, made); err != nil {
			return err
		}
		if made[name] {
			continue
		}
		made[name] = true
		if err := writeEntry(tw, name, files[name]); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("close layer: %w", err)
	}
	return nil
}

func writeParents(tw *tar.Writer, name string, files map[string]File, made map[string]bool) error {
	parent := path.Dir(name)
	if made[parent] {
		return nil
	}
	if err := writeParents(tw, parent, files, made); err != nil {
		return err
	}
	made[parent] = true
	entry, ok := files[parent]
	if !ok {
		entry = File{Mode: fs.ModeDir | 0o755}
	}
	return writeEntry(tw, parent, entry)
}

func writeEntry(tw *tar.Writer, name string, f File) error {
	header := &tar.Header{
		Name:    strings.TrimPrefix(name, "/"),
		Mode:    int64(f.Mode.Perm()),
		ModTime: time.Unix(0, 0),
		Format:  tar.FormatPAX,
	}
	// The sticky bit of a shared directory such as /tmp has another value in a tar header than in an fs.FileMode.
	if f.Mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	content := f.Content
	switch {
	case f.Mode.IsDir():
		header.Typeflag = tar.TypeDir
		header.Name += "/"
		content = nil
	case f.Target != "":
		header.Typeflag = tar.TypeSymlink
		header.Linkname = f.Target
		content = nil
	case f.Source != "":
		read, err := os.ReadFile(f.Source)
		if err != nil {
			return fmt.Errorf("image file %s: %w", name, err)
		}
		content = read
	}
	header.Size = int64(len(content))
	if err := tw.WriteHeader(header); err != nil {
		return fmt.Errorf("image file %s: %w", name, err)
	}
	if _, err := tw.Write(content); err != nil {
		return fmt.Errorf("image file %s: %w", name, err)
	}
	return nil
}
