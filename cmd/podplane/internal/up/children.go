package up

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/podplane/podplane/internal/bus/embedded"
)

// keysDir holds the services' keys for the bus, readable by root only.
func keysDir(c Config) string { return filepath.Join(c.RunDir, "keys") }

// startBus starts a bus unless one is named, with a key for each service.
func (s *stack) startBus() error {
	if s.cfg.NATSURL != "" {
		s.say("  bus       %s, as named\n", s.cfg.NATSURL)
		return nil
	}
	// The keys are there before the server and the services start, so that
	// none of them waits for another.
	if _, err := embedded.ServiceUsers(keysDir(s.cfg), s.cfg.Node); err != nil {
		return fmt.Errorf("make the services' keys: %w", err)
	}
	s.cfg.NATSURL = "nats://" + s.cfg.NATSListen
	s.ownBus = true
	s.keep("nats", []string{
		"nats", "--listen", s.cfg.NATSListen, "--store-dir", s.cfg.BusDir(),
		"--keys-dir", keysDir(s.cfg), "--node", s.cfg.Node,
		"--encryption-key", s.encryptionKey(), "--tls-dir", s.cfg.TLSDir,
		"--log-level", s.cfg.LogLevel, "--log-format", s.cfg.LogFormat,
	})
	s.say("  bus       %s, on disk in %s\n", s.cfg.NATSURL, s.cfg.BusDir())
	return nil
}

// encryptionKey is the file with the key of the records, in the words of `podplane nats`.
func (s *stack) encryptionKey() string {
	if key := s.cfg.BusKey(); key != "" {
		return key
	}
	return NoKey
}

// serviceArgs are the arguments of a service: what all share, then its own.
func (s *stack) serviceArgs(name string) []string {
	c := s.cfg
	args := []string{
		name, "--node", c.Node, "--root", c.Root, "--run-dir", c.RunDir,
		"--nats-url", c.NATSURL, "--cri-endpoint", c.CRIEndpoint,
		"--log-level", c.LogLevel, "--log-format", c.LogFormat,
	}
	if c.TLSDir != "" {
		args = append(args, "--tls-dir", c.TLSDir)
	}
	switch {
	case s.ownBus:
		args = append(args, "--nats-nkey-seed", embedded.SeedFile(keysDir(c), name))
	case c.NATSKeysDir != "":
		args = append(args, "--nats-nkey-seed", embedded.SeedFile(c.NATSKeysDir, name))
	}
	if c.BusReplicas > 1 {
		args = append(args, "--bus-replicas", strconv.Itoa(c.BusReplicas))
	}
	if c.Address != "" {
		args = append(args, "--grpc-listen", net.JoinHostPort(c.Address, "0"))
	}
	switch name {
	case "gateway":
		args = append(args, s.doorArgs()...)
	case "syncd":
		args = append(args, "--manifest-dir", c.ManifestDir, "--pod-log-dir", c.PodLogDir, "--cgroup-root", c.CgroupRoot)
		args = append(args, manifestArgs(c)...)
	case "evictd":
		args = append(args, "--pod-log-dir", c.PodLogDir)
	}
	return args
}

// manifestArgs name the URL only where one is given, so that the environment can name one too.
func manifestArgs(c Config) (args []string) {
	if c.ManifestURL != "" {
		args = append(args, "--manifest-url", c.ManifestURL)
	}
	if len(c.ManifestURLHeader) > 0 {
		args = append(args, "--manifest-url-header", strings.Join(c.ManifestURLHeader, ","))
	}
	return args
}
