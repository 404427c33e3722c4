package incontainer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/podplane/podplane/internal/fault"
)

const (
	mountNamespace = "/proc/self/ns/mnt"
	joinRetry      = 100 * time.Millisecond
	joinTimeout    = 30 * time.Second
	// joinedStop is how long a joined program may take to end when it is asked to.
	joinedStop = 8 * time.Second
)

type joinOptions struct {
	socket string
	pid    int
	own    []string
}

func joinCommand() *cobra.Command {
	var o joinOptions
	cmd := &cobra.Command{
		Use:   "join [--socket FILE | --pid PID] -- COMMAND [ARGUMENT]...",
		Short: "Run another command of podplane in the runtime's mount namespace, for as long as that runtime lives, or in that of a process",
		Args:  cobra.MinimumNArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return o.join(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.socket, "socket", "/run/podplane/mounts.sock", "where the runtime gives its mount namespace away")
	f.IntVar(&o.pid, "pid", 0, "join the mount namespace of this process instead: 1 is the host's where the container shares the host's process namespace")
	f.StringSliceVar(&o.own, "own", nil, "environment variables that name files of this container, which the command is to find there")
	return cmd
}

// join runs podplane with args in the mount namespace that it is told, until that ends, ctx ends or the owner of the socket goes away.
func (o joinOptions) join(ctx context.Context, args []string) error {
	gone := make(chan struct{}) // stays open with a process that is not waited for
	var namespace *os.File
	var err error
	if o.pid != 0 {
		if namespace, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", o.pid)); err != nil {
			return fmt.Errorf("find the mount namespace of process %d: %w", o.pid, err)
		}
	} else {
		var conn *net.UnixConn
		if conn, namespace, err = receiveNamespace(ctx, o.socket); err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		go func() {
			defer close(gone)
			_, _ = conn.Read(make([]byte, 1)) // nothing is ever sent: it returns when the owner, or this function, is gone
		}()
	}
	ended := make(chan error, 1)
	started := make(chan *os.Process, 1)
	go func() { ended <- runIn(namespace, args, o.environment(), started) }()
	var process *os.Process
	select {
	case process = <-started:
	case err := <-ended:
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-gone:
		// Its mounts are of no use to anybody now.
		return errors.Join(errors.New("the runtime has gone"), process.Kill(), quiet(<-ended))
	case <-ctx.Done():
	}
	force := time.AfterFunc(joinedStop, func() { _ = process.Kill() }) // it may have ended
	defer force.Stop()
	if err := process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", args[0], err)
	}
	return <-ended
}

// ownRoot is where a joined command has the root of this process' mount namespace: the first file that it is handed. (/proc/PID/root of this
// process will not do: the thread that joins may be the one that it means.)
const ownRoot = "/proc/self/fd/3"

// environment is this process' environment, in which the variables of o.own name files as the command finds them.
func (o joinOptions) environment() []string {
	env := os.Environ()
	for i, kv := range env {
		name, path, _ := strings.Cut(kv, "=")
		if slices.Contains(o.own, name) && path != "" {
			env[i] = name + "=" + ownRoot + path
		}
	}
	return env
}

// quiet drops the error of a process that was killed.
func quiet(err error) error {
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// runIn runs podplane with args in a mount namespace. The thread that enters it is never used for anything else again: it ends with the
// goroutine, which stays locked to it.
func runIn(namespace *os.File, args, env []string, started chan<- *os.Process) error {
	runtime.LockOSThread()
	defer func() { _ = namespace.Close() }()
	root, err := os.Open("/")
	if err != nil {
		return fmt.Errorf("open the root: %w", err)
	}
	defer func() { _ = root.Close() }()
	// A thread that shares its root and working directory with others can't change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("part the thread's file system state: %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the runtime's mount namespace: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", args...) // this very file, whatever the runtime's image has
	cmd.Args[0] = "podplane"
	cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", env, []*os.File{root}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", args[0], err)
	}
	started <- cmd.Process
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	return nil
}

// receiveNamespace waits for the owner of the socket. The connection lives as long as the owner does.
func receiveNamespace(ctx context.Context, socket string) (*net.UnixConn, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	tick := time.NewTicker(joinRetry)
	defer tick.Stop()
	for {
		conn, file, err := askNamespace(ctx, socket)
		if err == nil {
			return conn, file, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("ask the runtime for its mount namespace: %w", err)
		}
	}
}

func askNamespace(ctx context.Context, socket string) (*net.UnixConn, *os.File, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(fault.New(fault.Internal, "%s is a %T", socket, c), c.Close())
	}
	file, err := readDescriptor(ctx, conn)
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, file, nil
}

func readDescriptor(ctx context.Context, conn *net.UnixConn) (*os.File, error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return nil, err
		}
	}
	data, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(data, control)
	if err != nil {
		return nil, err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return nil, fault.New(fault.Internal, "the runtime sent no descriptor: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fault.New(fault.Internal, "the runtime sent no descriptor: %w", err)
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "mount namespace"), nil
}

// giveNamespace gives this process' mount namespace to whoever connects to the socket, which only root may, until ctx ends.
func giveNamespace(ctx context.Context, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return fmt.Errorf("give the mount namespace away: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("give the mount namespace away: %w", err)
	}
	namespace, err := os.Open(mountNamespace)
	if err != nil {
		return fmt.Errorf("give the mount namespace away: %w", err)
	}
	defer func() { _ = namespace.Close() }()
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("give the mount namespace away: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = lis.Close() })()
	if err := os.Chmod(socket, 0o600); err != nil {
		return errors.Join(fmt.Errorf("give the mount namespace away: %w", err), lis.Close())
	}
	var held []*net.UnixConn // closed with this process' end of work: that tells the others
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	for {
		conn, err := lis.AcceptUnix()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("give the mount namespace away: %w", err)
		}
		if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(namespace.Fd())), nil); err != nil {
			_ = conn.Close() // it has gone again
			continue
		}
		held = append(withoutClosed(held), conn)
	}
}

// withoutClosed lets go of connections whose other end has gone.
func withoutClosed(held []*net.UnixConn) []*net.UnixConn {
	live := held[:0]
	for _, c := range held {
		// A deadline that has passed: what comes back at once tells whether the other end is there.
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			live = append(live, c)
			continue
		}
		_ = c.Close()
	}
	return live
}
