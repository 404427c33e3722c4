package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/cmd/podplane/internal/up"
	"github.com/podplane/podplane/internal/bus/embedded"
)

// Where says what to look at.
type Where struct {
	// Host is as for `podplane up`.
	Host up.Config
	// Seed is the administrator's key of a bus that is named.
	Seed string
}

// Gather looks at everything. What can't be seen is in the facts as such.
func Gather(ctx context.Context, w Where) Facts {
	f := Facts{Now: time.Now(), Host: gatherHost(w.Host)}
	var info up.Info
	var err error
	if f.Up, info, err = up.Running(w.Host.RunDir); err != nil {
		f.UpErr = err.Error()
	}
	f.Ready = f.Up && info.Server != ""
	if f.Ready {
		w.Host.Node = info.Node
	}
	for _, p := range addresses(w.Host, info) {
		f.Ports = append(f.Ports, gatherPort(p))
	}
	f.Disks = gatherDisks(w.Host.Root, w.Host.RunDir, w.Host.PodLogDir)
	endpoint, own := runtimeEndpoint(w.Host, info)
	f.Runtime = gatherRuntime(ctx, w.Host, endpoint, own, f.Up || !own)
	f.Bus = gatherBus(ctx, w, info, f.Ready, func(l Leftovers) { f.Leftovers = l }, endpoint)
	return f
}

// addresses are those that Podplane listens on, or would.
func addresses(c up.Config, info up.Info) []Port {
	rest := Port{Flag: "--listen", Address: c.Listen}
	if u, err := url.Parse(info.Server); err == nil && u.Host != "" {
		rest.Address = u.Host
	}
	if c.NATSURL != "" {
		return []Port{rest}
	}
	nats := Port{Flag: "--nats-listen", Address: c.NATSListen}
	if u, err := url.Parse(info.NATSURL); err == nil && u.Host != "" {
		nats.Address = u.Host
	}
	return []Port{rest, nats}
}

func gatherPort(p Port) Port {
	_, port, err := net.SplitHostPort(p.Address)
	if err != nil {
		p.Err = err.Error()
		return p
	}
	if port == "0" {
		p.Free = true
		return p
	}
	l, err := net.Listen("tcp", p.Address)
	if err == nil {
		p.Free = true
		_ = l.Close()
		return p
	}
	if !isInUse(err) {
		p.Err = err.Error()
		return p
	}
	p.Holder, p.Ours = holder(port)
	return p
}

// gatherDisks looks at each file system once.
func gatherDisks(paths ...string) []Disk {
	seen := map[uint64]bool{}
	var list []Disk
	for _, path := range paths {
		there, st := existing(path)
		if st == nil {
			list = append(list, Disk{Path: path, Err: "neither it nor a directory above it can be seen"})
			continue
		}
		if seen[st.Dev] {
			continue
		}
		seen[st.Dev] = true
		d := Disk{Path: path}
		var fs unix.Statfs_t
		if err := unix.Statfs(there, &fs); err != nil {
			d.Err = fmt.Sprintf("look at the disk of %s: %v", path, err)
		} else {
			size := uint64(max(fs.Bsize, 1))
			d.FreeBytes, d.TotalBytes = fs.Bavail*size, fs.Blocks*size
			d.FreeInodes, d.TotalInodes = fs.Ffree, fs.Files
			d.ReadOnly = fs.Flags&unix.ST_RDONLY != 0
		}
		list = append(list, d)
	}
	return list
}

// existing is the directory, or the nearest one above it that exists.
func existing(path string) (string, *unix.Stat_t) {
	for {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			return path, &st
		}
		above := filepath.Dir(path)
		if above == path {
			return path, nil
		}
		path = above
	}
}

// newestFile is when the newest file below a directory was written; zero where there is none.
func newestFile(dir string) time.Time {
	var newest time.Time
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went while we looked
		}
		if info, err := d.Info(); err == nil && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		return nil
	})
	return newest
}

// keyOf looks at the key of the host's own records.
func keyOf(c up.Config) (file, wrong string) {
	file = c.BusKey()
	if err := embedded.CheckKey(c.BusDir(), file); err != nil {
		return file, err.Error()
	}
	if file == "" {
		return "", ""
	}
	if _, err := os.Stat(filepath.Join(c.BusDir(), "jetstream")); err != nil {
		return file, "" // no records yet: it is made with them
	}
	if _, err := os.Stat(file); err != nil {
		return "", ""
	}
	return file, ""
}
