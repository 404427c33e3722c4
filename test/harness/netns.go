package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Network is a network of hosts: a network namespace for each, and one for the switch that joins them. The kernel removes all of it with its
// processes, also when the test is killed.
type Network struct {
	hosts  map[string]*namespace
	bridge *namespace
}

// namespace lives as long as its process.
type namespace struct {
	path   string
	number int
	cmd    *exec.Cmd
	stdin  io.Closer
}

// NewNetwork makes a network of the hosts with these names.
func NewNetwork(hosts ...string) (_ *Network, err error) {
	n := &Network{hosts: map[string]*namespace{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.bridge, err = newNamespace(0); err != nil {
		return nil, err
	}
	if err := ip(n.bridge.path, "link add switch type bridge", "link set switch up"); err != nil {
		return nil, err
	}
	for i, name := range hosts {
		h, err := newNamespace(i + 1)
		if err != nil {
			return nil, err
		}
		n.hosts[name] = h
		pid := strconv.Itoa(h.cmd.Process.Pid)
		err = ip(n.bridge.path, "link add "+h.port()+" type veth peer name eth0 netns "+pid, "link set "+h.port()+" master switch", "link set "+h.port()+" up")
		if err == nil {
			err = ip(h.path, "link set lo up", "address add "+n.Address(name)+"/24 dev eth0", "link set eth0 up", "route add default dev eth0")
		}
		if err != nil {
			return nil, err
		}
	}
	return n, nil
}

func newNamespace(number int) (*namespace, error) {
	cmd := exec.Command("cat") // which ends with its input
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	return &namespace{path: fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), number: number, cmd: cmd, stdin: in}, nil
}

// port is the host's at the switch.
func (h *namespace) port() string { return "port" + strconv.Itoa(h.number) }

// NetNS is the network namespace of a host.
func (n *Network) NetNS(host string) string { return n.hosts[host].path }

// Address is a host's.
func (n *Network) Address(host string) string {
	return "198.18.240." + strconv.Itoa(n.hosts[host].number)
}

// Cut pulls a host's cable.
func (n *Network) Cut(host string) error {
	return ip(n.bridge.path, "link set "+n.hosts[host].port()+" down")
}

// Heal plugs it in again.
func (n *Network) Heal(host string) error {
	return ip(n.bridge.path, "link set "+n.hosts[host].port()+" up")
}

// Close ends the namespaces' own processes; with others in them they stay until those end.
func (n *Network) Close() error {
	var errs []error
	for _, h := range append([]*namespace{n.bridge}, values(n.hosts)...) {
		if h != nil {
			errs = append(errs, h.stdin.Close(), h.cmd.Wait())
		}
	}
	return errors.Join(errs...)
}

func values(m map[string]*namespace) []*namespace {
	var list []*namespace
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

// ip runs commands of iproute2 in a network namespace.
func ip(netns string, commands ...string) error {
	for _, c := range commands {
		if out, err := InNetNS(netns, "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", c, err, out)
		}
	}
	return nil
}

// InNetNS is a command in a network namespace; empty: the caller's.
func InNetNS(netns, name string, args ...string) *exec.Cmd {
	if netns == "" {
		return exec.Command(name, args...)
	}
	return exec.Command("nsenter", append([]string{"--net=" + netns, "--", name}, args...)...)
}

// clientIn is an HTTP client whose connections begin in a network namespace.
func clientIn(netns string) *http.Client {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		var conn net.Conn
		err := within(netns, func() (err error) {
			conn, err = dialer.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return &http.Client{Timeout: client.Timeout, Transport: &http.Transport{DialContext: dial}}
}

// within calls f on a thread that is in a network namespace. The addresses that f dials have to be numbers: a resolver would have threads of its own.
func within(netns string, f func() error) error {
	target, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = target.Close() }()
	done := make(chan error, 1)
	go func() {
		// The thread must not end: what it has started dies with it (Pdeathsig). So it goes back to where it was.
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer func() {
			if err := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); err == nil {
				runtime.UnlockOSThread()
			}
			_ = own.Close()
		}()
		if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}
