package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pause waits for a time or until the process is told to end.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func pauseFor(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return nil
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	pause(ctx, d)
	return nil
}

func sleep(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "forever" {
		<-ctx.Done()
		return nil
	}
	return pauseFor(ctx, args)
}

func stubborn(_ context.Context, _ []string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("ignoring SIGTERM")
	for {
		time.Sleep(time.Hour)
	}
}

func trap(ctx context.Context, args []string) error {
	if err := want(args, 2, 2); err != nil {
		return err
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	code, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	fmt.Println("waiting for SIGTERM")
	<-ctx.Done()
	fmt.Println("terminating")
	time.Sleep(d)
	return exitError(code)
}

func exit(ctx context.Context, args []string) error {
	if err := want(args, 1, 2); err != nil {
		return err
	}
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := pauseFor(ctx, args[1:]); err != nil {
		return err
	}
	if code == 0 {
		return nil
	}
	return exitError(code)
}

func crash(ctx context.Context, args []string) error {
	if err := want(args, 1, 2); err != nil {
		return err
	}
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if err := pauseFor(ctx, args[1:]); err != nil {
		return err
	}
	// The first process of a PID namespace gets no signal from inside that it does not handle: let a child end by the signal and
	// report it as a shell does.
	child := exec.CommandContext(ctx, "/proc/self/exe", "sleep", "forever")
	if err := child.Start(); err != nil {
		return err
	}
	if err := child.Process.Signal(syscall.Signal(number)); err != nil {
		return err
	}
	err = child.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return err
	}
	return exitError(128 + number)
}

func failUntil(_ context.Context, args []string) error {
	if err := want(args, 2, 2); err != nil {
		return err
	}
	limit, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	content, err := os.ReadFile(args[0])
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	runs := bytes.Count(content, []byte("\n")) + 1
	if err := appendLine(context.Background(), []string{args[0], strconv.Itoa(runs)}); err != nil {
		return err
	}
	fmt.Printf("run %d\n", runs)
	if runs <= limit {
		return exitError(1)
	}
	return nil
}

// size reads a number of bytes with an optional binary suffix.
func size(s string) (int64, error) {
	shift := 0
	for i, suffix := range []string{"Ki", "Mi", "Gi"} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, shift = rest, 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, err
	}
	return n << shift, nil
}

func hog(ctx context.Context, args []string) error {
	if err := want(args, 1, 2); err != nil {
		return err
	}
	n, err := size(args[0])
	if err != nil {
		return err
	}
	if err := pauseFor(ctx, args[1:]); err != nil {
		return err
	}
	const step = 1 << 20
	var held [][]byte
	for done := int64(0); done < n && ctx.Err() == nil; done += step {
		held = append(held, bytes.Repeat([]byte{1}, step))
	}
	fmt.Printf("holding %d bytes\n", int64(len(held))*step)
	<-ctx.Done()
	// Said after the wait, so that the memory is in use until here.
	fmt.Printf("released %d blocks\n", len(held))
	return nil
}

func fill(ctx context.Context, args []string) error {
	if err := want(args, 2, 2); err != nil {
		return err
	}
	n, err := size(args[1])
	if err != nil {
		return err
	}
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	block := bytes.Repeat([]byte{'x'}, 1<<20)
	for n > 0 && err == nil && ctx.Err() == nil {
		var written int
		written, err = file.Write(block[:min(n, int64(len(block)))])
		n -= int64(written)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	fmt.Println("filled")
	<-ctx.Done()
	return nil
}

func spawn(ctx context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	children := make([]*exec.Cmd, 0, n)
	for range n {
		child := exec.CommandContext(ctx, "/proc/self/exe", "sleep", "forever")
		if err = child.Start(); err != nil {
			break
		}
		children = append(children, child)
	}
	fmt.Printf("started %d children\n", len(children))
	if err != nil {
		fmt.Println(err)
	}
	<-ctx.Done()
	for _, child := range children {
		// Each ends by the kill of its context; there is nothing to learn from how.
		_ = child.Wait()
	}
	return nil
}

func logLines(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("log", flag.ContinueOnError)
	n := flags.Int("n", 1, "number of lines; 0 is without end")
	every := flags.Duration("every", 0, "time between lines")
	stderr := flags.Bool("stderr", false, "write to standard error")
	if err := flags.Parse(args); err != nil {
		return exitError(2)
	}
	var out io.Writer = os.Stdout
	if *stderr {
		out = os.Stderr
	}
	for i := 1; (*n == 0 || i <= *n) && ctx.Err() == nil; i++ {
		if i > 1 {
			pause(ctx, *every)
		}
		if _, err := fmt.Fprintf(out, "%s %d\n", strings.Join(flags.Args(), " "), i); err != nil {
			return err
		}
	}
	return nil
}
