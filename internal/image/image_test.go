package image_test

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/podplane/podplane/internal/image"
)

func spec(t *testing.T) image.Spec {
	t.Helper()
	source := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(source, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	return image.Spec{
		Files: map[string]image.File{
			"/bin/program": {Source: source, Mode: 0o755},
			"/bin/alias":   {Target: "program", Mode: 0o777},
			"/etc/motd":    {Content: []byte("hello"), Mode: 0o644},
			"/tmp":         {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		},
		Entrypoint:   []string{"/bin/program"},
		Volumes:      []string{"/data"},
		User:         "1000",
		Architecture: "amd64",
	}
}

func TestBuildIsReproducible(t *testing.T) {
	var digests [2]v1.Hash
	for i := range digests {
		img, err := image.Build(spec(t))
		if err != nil {
			t.Fatal(err)
		}
		if digests[i], err = img.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] {
		t.Fatalf("two builds of the same files have digests %s and %s", digests[0], digests[1])
	}
}

func TestArchiveKeepsFilesAndConfiguration(t *testing.T) {
	built, err := image.Build(spec(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := image.WriteArchive(file, "podplane.local/test:1", built); err != nil {
		t.Fatal(err)
	}
	img, err := image.ReadArchive(file)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.User + " " + strings.Join(config.Config.Entrypoint, " "); got != "1000 /bin/program" {
		t.Errorf("configuration is %q", got)
	}
	if _, ok := config.Config.Volumes["/data"]; !ok {
		t.Errorf("volume /data is missing: %v", config.Config.Volumes)
	}
	want := map[string]string{
		"bin/": "d 755", "bin/program": "f 755 ELF", "bin/alias": "l program", "etc/": "d 755", "etc/motd": "f 644 hello", "tmp/": "d 1777",
	}
	got := entries(t, img)
	for name, entry := range want {
		if got[name] != entry {
			t.Errorf("%s is %q, want %q", name, got[name], entry)
		}
	}
	if len(got) != len(want) {
		t.Errorf("entries are %v, want %v", got, want)
	}
}

func TestBuildRefusesRelativePath(t *testing.T) {
	_, err := image.Build(image.Spec{Files: map[string]image.File{"etc/motd": {Mode: 0o644}}})
	if err == nil || !strings.Contains(err.Error(), "etc/motd") {
		t.Fatalf("error is %v, want one that names the path", err)
	}
}

func entries(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("layers: %d, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = content.Close() }()
	found := map[string]string{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			found[header.Name] = "d " + strconv.FormatInt(header.Mode, 8)
		case tar.TypeSymlink:
			found[header.Name] = "l " + header.Linkname
		default:
			found[header.Name] = "f " + strconv.FormatInt(header.Mode, 8) + " " + string(body)
		}
	}
}
