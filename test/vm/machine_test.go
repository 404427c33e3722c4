package vm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/podplane/podplane/internal/testkit"
	"github.com/podplane/podplane/test/harness"
)

// machine is how a virtual machine is started.
type machine struct {
	name string
	// init is the first process after the initramfs'.
	init string
	// kernel are further words of its command line.
	kernel []string
}

// suite are tests of a package that run in a machine.
type suite struct {
	// pkg is the package's directory below the repository's; run says which tests, as -test.run does.
	pkg, run string
	// files are what the tests need of the package's directory.
	files []string
	// passes are tests that must have passed: without them a pattern that fits nothing would be a success.
	passes []string
}

func (s suite) binary() string { return filepath.Base(s.pkg) + ".test" }

// What the emulated machine has. TSC and 4 levels of page tables: reading the clock and walking the tables is most of what a kernel does under
// emulation otherwise. Without the fast string operations (erms, and rep_good in clearcpuid), whose emulation is slow, loops are used.
const (
	memory    = "3072"
	processor = "max,-erms"
	bootline  = "console=ttyS0 quiet panic=-1 mitigations=off clocksource=tsc tsc=reliable no5lvl clearcpuid=112 init_on_alloc=0 hugepages=16"
	exitLine  = "== ended with "
)

// run boots a machine, runs the suites in it, and reports their tests as its own.
func run(t *testing.T, m machine, suites ...suite) {
	t.Helper()
	root, err := harness.FindUp("go.work")
	if err != nil {
		t.Fatal(err)
	}
	root = filepath.Dir(root)
	local, err := testkit.Local()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "repo.img")
	if err := errors.Join(assemble(t.Context(), root, local, filepath.Join(dir, "repo"), suites), format(t.Context(), filepath.Join(dir, "repo"), disk)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	console, output := filepath.Join(dir, "console"), filepath.Join(dir, "output")
	bootErr := boot(ctx, m, filepath.Join(local, "vm"), disk, console, output)
	said, err := os.ReadFile(output)
	if err != nil {
		t.Errorf("read what the tests in the machine printed: %v", err)
	}
	report(t, string(said), suites)
	if bootErr != nil {
		t.Error(bootErr)
	}
	if t.Failed() {
		t.Logf("the tests in the machine printed:\n%s\nthe machine's console:\n%s", tail(output, 60000), tail(console, 8000))
	}
}

// assemble lays out what the machine sees as /repo: the programs and images, and the suites' tests.
func assemble(ctx context.Context, root, local, to string, suites []suite) error {
	for from, into := range map[string]string{
		filepath.Join(root, "go.work"):                      ".",
		filepath.Join(root, "test/vm/guest.sh"):             ".",
		filepath.Join(root, "bin/podplane"):                 "bin",
		filepath.Join(local, "bin/containerd"):              ".local/bin",
		filepath.Join(local, "bin/containerd-shim-runc-v2"): ".local/bin",
		filepath.Join(local, "bin/runc"):                    ".local/bin",
		filepath.Join(local, "bin/ctr"):                     ".local/bin",
		filepath.Join(local, "cni/bin"):                     ".local/cni",
		filepath.Join(local, "images/pause.tar"):            ".local/images",
		filepath.Join(local, "images/app.tar"):              ".local/images",
		filepath.Join(local, "images/busybox.tar"):          ".local/images",
	} {
		if err := copyTo(ctx, from, filepath.Join(to, into)); err != nil {
			return err
		}
	}
	var script strings.Builder
	script.WriteString("#!/bin/bash\n")
	for _, s := range suites {
		dir := filepath.Join(to, s.pkg)
		for _, f := range s.files {
			if err := copyTo(ctx, filepath.Join(root, s.pkg, f), dir); err != nil {
				return err
			}
		}
		build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, s.binary()), s.pkg)
		build.Dir = root
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("compile the tests of %s: %w: %s", s.pkg, err, out)
		}
		fmt.Fprintf(&script, "cd '/repo/%s'\n./%s -test.v -test.run '%s'\necho \"%s$?\"\n", s.pkg, s.binary(), s.run, exitLine)
	}
	return os.WriteFile(filepath.Join(to, "tests.sh"), []byte(script.String()), 0o755)
}

func copyTo(ctx context.Context, from, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, dir).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// format makes an image of a directory.
func format(ctx context.Context, dir, image string) error {
	out, err := exec.CommandContext(ctx, "/sbin/mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-d", dir, image, "512M").CombinedOutput()
	if err != nil {
		return fmt.Errorf("make the disk of tests: %w: %s", err, out)
	}
	return nil
}

// boot runs a machine until it switches itself off. Nothing of it is left: its disks are not written to.
func boot(ctx context.Context, m machine, images, disk, console, output string) error {
	line := append([]string{bootline, "podplane.init=" + m.init}, m.kernel...)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on", "-rtc", "clock=vm", "-cpu", processor, "-smp", "1", "-m", memory,
		"-kernel", filepath.Join(images, "vmlinuz"), "-initrd", filepath.Join(images, "initramfs.gz"), "-append", strings.Join(line, " "),
		"-drive", "format=raw,if=virtio,snapshot=on,cache=unsafe,file="+filepath.Join(images, "disk.img"),
		"-drive", "format=raw,if=virtio,readonly=on,file="+disk,
		"-serial", "file:"+console, "-serial", "file:"+output)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("machine %s did not end: %w", m.name, ctx.Err())
	}
	if err != nil {
		return fmt.Errorf("run machine %s: %w: %s", m.name, err, out)
	}
	return nil
}

// report makes a subtest of each test that ended in the machine.
func report(t *testing.T, said string, suites []suite) {
	t.Helper()
	var passed []string
	exits := 0
	for lines := bufio.NewScanner(strings.NewReader(said)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if code, is := strings.CutPrefix(line, exitLine); is {
			if exits++; code != "0" {
				t.Errorf("suite %d ended with %s", exits, code)
			}
		}
		verdict, rest, is := strings.Cut(line, ": ")
		name, _, _ := strings.Cut(rest, " ")
		switch {
		case !is:
		case verdict == "--- PASS":
			passed = append(passed, name)
			t.Run(name, func(*testing.T) {})
		case verdict == "--- FAIL":
			t.Run(name, func(t *testing.T) { t.Error("failed in the machine; what it printed is below") })
		}
	}
	if exits != len(suites) {
		t.Errorf("%d of %d suites came to their end", exits, len(suites))
	}
	for _, s := range suites {
		for _, name := range s.passes {
			if !slices.Contains(passed, name) {
				t.Errorf("%s: %s did not pass", s.pkg, name)
			}
		}
	}
}

// tail is the end of a file, for messages.
func tail(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
