package hostruntime

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StartTimeout bounds Start, StopTimeout the graceful part of Stop.
const (
	StartTimeout = 60 * time.Second
	StopTimeout  = 5 * time.Second
)

// Names and limits of the kernel and of containerd.
const (
	maxInterfaceName = 15
	maxSocketDir     = 38
	maxSocketPath    = 107
)

// PauseImage and DemoImage are the names of the images that are built with Podplane and need no registry.
const (
	PauseImage = "podplane.local/pause:1"
	DemoImage  = "podplane.local/demo:1"
)

// Config says where the runtime lives and what it runs with. DefaultConfig fills it for `podplane up`.
type Config struct {
	// BinDir holds containerd, containerd-shim-runc-v2, runc and ctr; CNIBinDir the CNI plugins bridge, host-local and portmap.
	BinDir    string
	CNIBinDir string
	// Root holds images, snapshots and metadata and survives a reboot.
	Root string
	// State holds sockets, bundles, CNI leases and the generated configuration, and may be on a tmpfs. It has to be short.
	State string
	// LogLevel is containerd's: warn by default, as its log grows with each pod at info.
	LogLevel string
	// Bridge is the name of the bridge that pods are attached to, PodCIDR the subnet of their addresses.
	Bridge  string
	PodCIDR string
	// SandboxImage is the image of the sandbox's own container.
	SandboxImage string
	// Images are imported at start if the runtime lacks them or the archive changed, and are kept from garbage collection.
	Images []Image
	// SocketGroup may use the socket besides root; 0: root only. Who may use it may do everything on this host.
	SocketGroup int
	// PlainHTTP are registries (host:port) to talk to without TLS.
	PlainHTTP []string
	// Env is added to containerd's environment. The OTEL_* variables of this process are passed on without it.
	Env []string
}

// Image is an image archive on this host and the name of the image that it holds.
type Image struct {
	Name    string
	Archive string
}

// DefaultConfig is the configuration of `podplane up` with the programs and image archives that `make` built under dir.
func DefaultConfig(dir string) Config {
	return Config{
		BinDir:       filepath.Join(dir, "bin"),
		CNIBinDir:    filepath.Join(dir, "cni", "bin"),
		Root:         "/var/lib/podplane/containerd",
		State:        "/run/podplane/containerd",
		LogLevel:     "warn",
		Bridge:       "podplane0",
		PodCIDR:      "10.188.0.0/16",
		SandboxImage: PauseImage,
		Images: []Image{
			{Name: PauseImage, Archive: filepath.Join(dir, "images", "pause.tar")},
			{Name: DemoImage, Archive: filepath.Join(dir, "images", "demo.tar")},
		},
	}
}

// Socket is the path of the runtime's socket.
func (c *Config) Socket() string { return filepath.Join(c.State, "containerd.sock") }

// Endpoint is the CRI endpoint, as CRI_ENDPOINT names one.
func (c *Config) Endpoint() string { return "unix://" + c.Socket() }

// LogFile is the path of containerd's log.
func (c *Config) LogFile() string { return filepath.Join(c.Root, "containerd.log") }

func (c *Config) configFile() string      { return filepath.Join(c.State, "config.toml") }
func (c *Config) pidFile() string         { return filepath.Join(c.State, "containerd.pid") }
func (c *Config) specFile() string        { return filepath.Join(c.State, "spec") }
func (c *Config) lockFile() string        { return filepath.Join(c.Root, "start.lock") }
func (c *Config) shimSockets() string     { return filepath.Join(c.State, "s") }
func (c *Config) cniConfDir() string      { return filepath.Join(c.State, "cni", "net.d") }
func (c *Config) cniLeases() string       { return filepath.Join(c.State, "cni", "leases") }
func (c *Config) registryDir() string     { return filepath.Join(c.State, "certs.d") }
func (c *Config) importedDir() string     { return filepath.Join(c.Root, "imported") }
func (c *Config) network() string         { return "podplane-" + c.Bridge }
func (c *Config) program(n string) string { return filepath.Join(c.BinDir, n) }

// Validate checks the configuration and that the programs are there.
func (c *Config) Validate() error {
	var errs []error
	for _, f := range []struct{ field, path string }{
		{"BinDir", c.BinDir},
		{"CNIBinDir", c.CNIBinDir},
		{"Root", c.Root},
		{"State", c.State},
	} {
		if !filepath.IsAbs(f.path) || filepath.Clean(f.path) != f.path || f.path == "/" {
			errs = append(errs, fmt.Errorf("field %s %q: want a clean absolute path below /", f.field, f.path))
		}
	}
	if n := len(c.shimSockets()); n > maxSocketDir {
		errs = append(errs, fmt.Errorf("field State %q: too long for the shims' sockets by %d characters", c.State, n-maxSocketDir))
	}
	if n := len(c.Socket()); n > maxSocketPath {
		errs = append(errs, fmt.Errorf("field State %q: too long for a socket by %d characters", c.State, n-maxSocketPath))
	}
	if c.Bridge == "" || len(c.Bridge) > maxInterfaceName || strings.ContainsAny(c.Bridge, "/ \t\"") {
		errs = append(errs, fmt.Errorf("field Bridge %q: want an interface name of 1 to %d characters", c.Bridge, maxInterfaceName))
	}
	if prefix, err := netip.ParsePrefix(c.PodCIDR); err != nil || prefix.Masked() != prefix || !prefix.Addr().Is4() || prefix.Bits() > 29 {
		errs = append(errs, fmt.Errorf("field PodCIDR %q: want an IPv4 subnet of at least 8 addresses, such as 10.188.0.0/16", c.PodCIDR))
	}
	if c.SandboxImage == "" {
		errs = append(errs, errors.New("field SandboxImage is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("runtime configuration: %w", err)
	}
	return c.checkPrograms()
}

func (c *Config) checkPrograms() error {
	if missing := c.Missing(); len(missing) > 0 {
		return fmt.Errorf("missing %s: run `make runtime images` first", strings.Join(missing, ", "))
	}
	return nil
}

// Missing lists the programs and archives that are not there.
func (c *Config) Missing() []string {
	var missing []string
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc", "ctr"} {
		missing = appendMissing(missing, c.program(name))
	}
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		missing = appendMissing(missing, filepath.Join(c.CNIBinDir, name))
	}
	for _, image := range c.Images {
		missing = appendMissing(missing, image.Archive)
	}
	return missing
}

func appendMissing(missing []string, path string) []string {
	if _, err := os.Stat(path); err != nil {
		return append(missing, path)
	}
	return missing
}
