// Command mkimage builds an image of one layer from files on this host and writes it as an archive.
//
//	mkimage -o pause.tar -ref podplane.local/pause:1 -entrypoint /pause /pause=build/pause
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/podplane/podplane/internal/image"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	output := flags.String("o", "", "the archive to write")
	reference := flags.String("ref", "", "the image's name, with its registry and tag")
	entrypoint := flags.String("entrypoint", "", "the entrypoint, words parted by spaces")
	cmd := flags.String("cmd", "", "the default arguments, words parted by spaces")
	user := flags.String("user", "", "the user to run as")
	arch := flags.String("arch", runtime.GOARCH, "the architecture that the files are for")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: mkimage -o ARCHIVE -ref NAME [flags] /PATH=FILE | /PATH=@LINK | /PATH/ ...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	files, err := parseFiles(flags.Args())
	if err != nil {
		return err
	}
	img, err := image.Build(image.Spec{
		Files:        files,
		Entrypoint:   strings.Fields(*entrypoint),
		Cmd:          strings.Fields(*cmd),
		User:         *user,
		Architecture: *arch,
	})
	if err != nil {
		return err
	}
	return image.WriteArchive(*output, *reference, img)
}

// parseFiles reads /PATH=FILE (a file of this host), /PATH=@LINK (a symbolic link) and /PATH/ (a directory that everybody may
// write to, as /tmp is).
func parseFiles(args []string) (map[string]image.File, error) {
	files := make(map[string]image.File, len(args))
	for _, arg := range args {
		if dir, ok := strings.CutSuffix(arg, "/"); ok {
			files[dir] = image.File{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
			continue
		}
		path, source, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("argument %q: neither /PATH=FILE nor /PATH=@LINK nor /PATH/", arg)
		}
		if link, ok := strings.CutPrefix(source, "@"); ok {
			files[path] = image.File{Target: link, Mode: 0o777}
			continue
		}
		info, err := os.Stat(source)
		if err != nil {
			return nil, fmt.Errorf("image file %s: %w", path, err)
		}
		files[path] = image.File{Source: source, Mode: info.Mode().Perm()}
	}
	return files, nil
}
