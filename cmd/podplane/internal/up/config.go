// Package up runs a whole Podplane on this host: a runtime of its own unless
// one is named, a bus of its own unless one is named, and the six services,
// each a child process of the same binary.
//
// What it starts it also stops, in reverse order, except the runtime: that one
// drains the containers' log pipes, so it stays as long as pods do
// (docs/decisions/0005).
package up

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/podplane/podplane/internal/shard"
)

// maxReplicas bounds the processes of one service: more would have no shard.
const maxReplicas = shard.Count

// Config says where everything is. The zero value is not usable; see Default.
type Config struct {
	// Node is the node's name, a DNS-1123 subdomain.
	Node string
	// Root is where state lives that outlives a restart of the host.
	Root string
	// RunDir is where sockets, keys and process ids live.
	RunDir string
	// Listen is gateway's host:port; port 0 takes a free one.
	Listen string
	// NATSURL names a bus to use; empty: one of our own.
	NATSURL string
	// NATSListen is the host:port of our own bus; port 0 takes a free one.
	NATSListen string
	// NATSKeysDir has the services' keys for the bus that NATSURL names (podplane nats keys); empty: it asks for none.
	NATSKeysDir string
	// BusReplicas is how many servers of the bus keep a copy of what is stored; 1: one does.
	BusReplicas int
	// Address is this host's, by which other nodes reach the services; empty: none does.
	Address string
	// EncryptionKey is the file with the key of the records on our own bus, made where it is missing; empty: nats.key below Root; "none": they are in
	// the clear.
	EncryptionKey string
	// TLSDir has the certificates by which the services and the bus talk TLS; empty: they talk plainly, on loopback.
	TLSDir string
	// Door is how gateway's door is kept.
	Door Door
	// CRIEndpoint names a runtime to use, such as
	// "unix:///run/containerd/containerd.sock"; empty: one of our own.
	CRIEndpoint string
	// ManifestDir is the directory whose pods run as long as their files are there.
	ManifestDir string
	// ManifestURL answers with further pods that run as long as it names them; ManifestURLHeader go with each request to it.
	ManifestURL       string
	ManifestURLHeader []string
	// PodLogDir is where the runtime writes the containers' logs.
	PodLogDir string
	// Replicas is how many processes of a service run; one of each that is not named.
	Replicas map[string]int
	// CgroupRoot is the cgroup below which pods run.
	CgroupRoot string
	LogLevel   string
	LogFormat  string
	// StopTimeout bounds the stop of each child.
	StopTimeout time.Duration
}

// Default is what `podplane up` does without flags.
func Default() Config {
	node, err := os.Hostname()
	if err != nil {
		node = "localhost"
	}
	return Config{
		Node: strings.ToLower(node), Root: "/var/lib/podplane", RunDir: "/run/podplane",
		Listen: "127.0.0.1:8080", NATSListen: "127.0.0.1:4222", BusReplicas: 1,
		NATSURL: os.Getenv("NATS_URL"), CRIEndpoint: os.Getenv("CRI_ENDPOINT"),
		EncryptionKey: os.Getenv("PODPLANE_ENCRYPTION_KEY"), TLSDir: os.Getenv("PODPLANE_TLS_DIR"), Door: defaultDoor(),
		ManifestDir: "/etc/podplane/manifests", PodLogDir: "/var/log/pods",
		CgroupRoot: "/", LogLevel: "info", LogFormat: "text", StopTimeout: 10 * time.Second,
	}
}

// checkShared checks what is for a bus that several nodes share.
func (c Config) checkShared() (errs []error) {
	if c.NATSURL == "" && c.NATSKeysDir != "" {
		errs = append(errs, errors.New("--nats-keys-dir: is for a bus that --nats-url names; our own makes its keys"))
	}
	if c.BusReplicas < 1 || c.BusReplicas > 5 {
		errs = append(errs, fmt.Errorf("--bus-replicas %d: want 1 to 5", c.BusReplicas))
	}
	if c.NATSURL == "" && c.BusReplicas > 1 {
		errs = append(errs, fmt.Errorf("--bus-replicas %d: our own bus is one server; name a cluster with --nats-url", c.BusReplicas))
	}
	if c.Address != "" && net.ParseIP(c.Address) == nil {
		errs = append(errs, fmt.Errorf("--address %q: want an IP address", c.Address))
	}
	if c.Address != "" && c.TLSDir == "" {
		errs = append(errs, errors.New("--address: other hosts reach the services over TLS only: --tls-dir (podplane certs)"))
	}
	return errs
}

// Validate says what is wrong, by flag.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("--node: must not be empty"))
	}
	for _, d := range []struct{ flag, value string }{
		{"--root", c.Root},
		{"--run-dir", c.RunDir},
		{"--pod-log-dir", c.PodLogDir},
	} {
		if !filepath.IsAbs(d.value) {
			errs = append(errs, fmt.Errorf("%s %q: want an absolute path", d.flag, d.value))
		}
	}
	if c.ManifestDir != "" && !filepath.IsAbs(c.ManifestDir) {
		errs = append(errs, fmt.Errorf("--manifest-dir %q: want an absolute path, or nothing for none", c.ManifestDir))
	}
	for _, l := range []struct{ flag, value string }{{"--listen", c.Listen}, {"--nats-listen", c.NATSListen}} {
		if _, _, err := net.SplitHostPort(l.value); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want host:port: %w", l.flag, l.value, err))
		}
	}
	errs = append(errs, c.checkShared()...)
	for name, n := range c.Replicas {
		switch {
		case !slices.Contains(Services, name):
			errs = append(errs, fmt.Errorf("--replicas %s=%d: no such service; there are %s", name, n, strings.Join(Services, ", ")))
		case name == "gateway" && n != 1:
			errs = append(errs, fmt.Errorf("--replicas gateway=%d: one address has one gateway", n))
		case n < 1 || n > maxReplicas:
			errs = append(errs, fmt.Errorf("--replicas %s=%d: want 1 to %d", name, n, maxReplicas))
		}
	}
	if c.CRIEndpoint != "" && !strings.HasPrefix(c.CRIEndpoint, "unix:///") {
		errs = append(errs, fmt.Errorf("--cri-endpoint %q: want unix:///path/of/the/socket", c.CRIEndpoint))
	}
	for _, f := range []struct{ flag, value string }{
		{"--tls-dir", c.TLSDir},
		{"--nats-keys-dir", c.NATSKeysDir},
		{"--tls-cert", c.Door.TLSCert},
		{"--tls-key", c.Door.TLSKey},
		{"--tokens", c.Door.Tokens},
		{"--client-ca", c.Door.ClientCA},
		{"--bindings", c.Door.Bindings},
		{"--encryption-key", c.EncryptionKey},
	} {
		if f.value != "" && !filepath.IsAbs(f.value) && (f.flag != "--encryption-key" || f.value != "none") {
			errs = append(errs, fmt.Errorf("%s %q: want an absolute path", f.flag, f.value))
		}
	}
	if err := c.Door.check(c.Listen); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withPorts replaces ports 0 by free ones, so that a child that is started
// again comes back at the address that others know.
func (c Config) withPorts() (Config, error) {
	var err error
	if c.Listen, err = freePort(c.Listen); err != nil {
		return c, fmt.Errorf("--listen: %w", err)
	}
	if c.NATSURL != "" {
		return c, nil // nothing of ours listens there; the bus that is named may
	}
	if c.NATSListen, err = freePort(c.NATSListen); err != nil {
		return c, fmt.Errorf("--nats-listen: %w", err)
	}
	return c, nil
}

// firstPort and ports are where port 0 is looked for: below what the kernel
// gives to those who ask for any port, so that no service of ours happens to
// take the address while its owner is being started again.
const (
	firstPort = 20000
	ports     = 10000
)

// freePort checks that addr can be listened on, and fills port 0 in.
func freePort(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if port != "0" {
		return addr, patiently(func() error { return canListen(addr) })
	}
	for range 100 {
		addr = net.JoinHostPort(host, strconv.Itoa(firstPort+rand.IntN(ports)))
		if err = canListen(addr); err == nil {
			return addr, nil
		}
	}
	return "", err
}

// patience is how long the processes of a Podplane that was killed may take to let go of their ports.
const patience = 2 * time.Second

func patiently(listen func() error) error {
	limit := time.After(patience)
	for {
		err := listen()
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
		select {
		case <-limit:
			return err
		case <-time.After(patience / 40):
		}
	}
}

func canListen(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w; is another program using it? choose another address with the flag", addr, err)
	}
	return l.Close()
}
