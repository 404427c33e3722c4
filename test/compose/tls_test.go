//go:build compose

package compose_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/podplane/podplane/internal/pki"
	"github.com/podplane/podplane/internal/testkit"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

const dialTimeout = 5 * time.Second

// testTLS is a pod of the node that tries the doors of syncd and of the bus.
func testTLS(ctx context.Context, t *testing.T) {
	pod := podProcess(t)
	tlsDir := filepath.Join(volume(ctx, t, "keys"), "tls")
	gatewayCert, err := pki.Load(tlsDir, "gateway", nil)
	if err != nil {
		t.Fatal(err)
	}
	syncd := replicasOf(ctx, t, "syncd")[0].GRPCAddress
	for _, c := range []struct {
		who     string
		creds   credentials.TransportCredentials
		allowed bool
	}{
		{"nobody, in plain text", insecure.NewCredentials(), false},
		{"nobody, encrypted", credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}), false},
		{"gateway, by its certificate", credentials.NewTLS(gatewayCert.Client("syncd")), true},
		{"gateway, which takes syncd for another", credentials.NewTLS(gatewayCert.Client("pleg")), false},
	} {
		if err := listPods(ctx, pod, syncd, c.creds); (err == nil) != c.allowed {
			t.Errorf("%s lists syncd's pods: %v", c.who, err)
		}
	}
	bus := net.JoinHostPort(address(ctx, t, "nats"), "4222")
	for _, c := range []struct {
		who    string
		secure *tls.Config
	}{{"plain", nil}, {"without a certificate", &tls.Config{InsecureSkipVerify: true}}, {"without a key", gatewayCert.Client(pki.Bus)}} {
		answer, _, err := greetBus(ctx, pod, bus, c.secure)
		if err == nil && strings.HasPrefix(answer, "PONG") {
			t.Errorf("the bus serves a stranger (%s)", c.who)
		}
		if c.secure == nil && err == nil && !strings.HasPrefix(answer, "-ERR") {
			t.Errorf("the bus answers a plain connection %q", answer)
		}
	}
	if answer, _, err := greetBus(ctx, pod, bus, gatewayCert.Client(pki.Bus)); err != nil || !strings.Contains(answer, "Authorization") {
		t.Errorf("the bus does not get as far as asking for a key: %q, %v", answer, err)
	}
}

// testRenewal has all certificates made anew, as docs/compose.md says. Nobody is started again for it.
func testRenewal(ctx context.Context, t *testing.T) {
	pod := podProcess(t)
	tlsDir := filepath.Join(volume(ctx, t, "keys"), "tls")
	own, err := pki.Load(tlsDir, "gateway", nil)
	if err != nil {
		t.Fatal(err)
	}
	bus, syncd := net.JoinHostPort(address(ctx, t, "nats"), "4222"), replicasOf(ctx, t, "syncd")[0].GRPCAddress
	serials := func() (ofBus, ofSyncd *big.Int, err error) {
		if _, ofBus, err = greetBus(ctx, pod, bus, own.Client(pki.Bus)); err != nil {
			return nil, nil, err
		}
		conn, err := dialFrom(ctx, pod, syncd)
		if err != nil {
			return nil, nil, err
		}
		defer func() { _ = conn.Close() }()
		c := own.Client("syncd")
		c.NextProtos = []string{"h2"}
		secure := tls.Client(conn, c)
		err = secure.HandshakeContext(ctx)
		if err != nil {
			return nil, nil, err
		}
		return ofBus, secure.ConnectionState().PeerCertificates[0].SerialNumber, nil
	}
	busBefore, syncdBefore, err := serials()
	if err != nil {
		t.Fatal(err)
	}
	before := inspect(ctx, t)
	must(t)(compose(ctx, "run", "--rm", "-e", "PODPLANE_RENEW_CERTS=true", "keys"))
	must(t)(compose(ctx, "exec", "-T", "nats", "nats-server", "--signal", "reload=1"))
	testkit.Eventually(ctx, t, "the new certificates are in use", func(context.Context) error {
		ofBus, ofSyncd, err := serials()
		if err != nil {
			return err
		}
		if ofBus.Cmp(busBefore) == 0 || ofSyncd.Cmp(syncdBefore) == 0 {
			return errors.New("still the old ones")
		}
		return nil
	})
	kill(ctx, t, "gateway") // it connects to everybody anew
	ready(ctx, t, "")
	for _, b := range before {
		for _, a := range inspect(ctx, t) {
			if a.Name == b.Name && a.service() != "gateway" && a.State.Pid != b.State.Pid {
				t.Errorf("%s was started again", a.Name)
			}
		}
	}
}

// testLostKeys takes keys away from the volume: they are not made anew in silence.
func testLostKeys(ctx context.Context, t *testing.T) {
	keys := volume(ctx, t, "keys")
	for name, want := range map[string]string{"jetstream.key": "nothing else reads them", "pleg.nk": "bring it back"} {
		file := filepath.Join(keys, name)
		if err := os.Rename(file, file+".lost"); err != nil {
			t.Fatal(err)
		}
		if out, err := compose(ctx, "run", "--rm", "keys"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %q, %v", name, out, err)
		}
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("%s was made anew: %v", name, err)
		}
		if err := os.Rename(file+".lost", file); err != nil {
			t.Fatal(err)
		}
	}
	must(t)(compose(ctx, "run", "--rm", "keys"))
}

// listPods asks syncd from a process' network namespace.
func listPods(ctx context.Context, pid int, address string, creds credentials.TransportCredentials) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dialFrom(ctx, pid, address) }))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := podplanev1.NewPodServiceClient(conn).ListPods(ctx, &podplanev1.ListRequest{})
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// greetBus connects to the bus from a process' network namespace, says hello and gives its answer and its certificate's number. Without a
// configuration it goes on plainly whatever the bus says.
func greetBus(ctx context.Context, pid int, address string, secure *tls.Config) (answer string, serial *big.Int, err error) {
	conn, err := dialFrom(ctx, pid, address)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return "", nil, err
	}
	info, err := bufio.NewReaderSize(conn, 1).ReadString('\n')
	if err != nil || !strings.Contains(info, `"tls_required":true`) {
		return "", nil, fmt.Errorf("the bus says %q (%w), want that it requires TLS", info, err)
	}
	if secure != nil {
		t := tls.Client(conn, secure)
		if err := t.HandshakeContext(ctx); err != nil {
			return "", nil, err
		}
		serial = t.ConnectionState().PeerCertificates[0].SerialNumber
		conn = t
	}
	if _, err := conn.Write([]byte("CONNECT {\"verbose\":false}\r\nPING\r\n")); err != nil {
		return "", nil, err
	}
	answer, err = bufio.NewReader(conn).ReadString('\n')
	return answer, serial, err
}

// dialFrom makes a TCP connection from a process' network namespace.
func dialFrom(ctx context.Context, pid int, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			defer func() { _ = namespace.Close() }()
			err = unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- result{nil, err}
			return
		}
		d := net.Dialer{Timeout: dialTimeout}
		conn, err := d.DialContext(ctx, "tcp", address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
