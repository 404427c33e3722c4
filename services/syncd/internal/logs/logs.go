// Package logs reads the logs of containers from the files that the runtime writes, in CRI's format.
//
// It owns nothing. A log is <pod log dir>/<namespace>_<name>_<uid>/<container>/<restart count>.log; files are opened below the pod log
// directory only, whatever links are in it. What was rotated away before the reading began is not read; while following, a rotation is
// followed: the old file is read to its end first. Following wakes up when the file or the pod's status changes (inotify, the store), ends
// when that instance of the container has ended and its file is read, and otherwise with the request.
//
// Memory is bounded whatever the file's size: tails are found from the file's end in blocks, lines of any length are passed on in pieces,
// and the receiver's pace holds the reading back.
package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// Statuses tells what became of pods.
type Statuses interface {
	Status(uid string) (*podplanev1.StatusRecord, bool)
	// Changes gives a signal, soon after the pod or its status changes, until ctx ends; it is closed when the pod is gone.
	Changes(ctx context.Context, uid string) <-chan struct{}
}

// Reader reads logs. Make one with New.
type Reader struct {
	dir      string
	statuses Statuses
	log      *slog.Logger
	now      func() time.Time
}

// New makes a reader of the logs below the pod log directory.
func New(dir string, statuses Statuses, log *slog.Logger) *Reader {
	return &Reader{dir: dir, statuses: statuses, log: log, now: time.Now}
}

// Stream sends what the request asks for, in pieces that belong to the receiver, until the end or, when following, until the container
// ends or ctx does. A nil piece comes first, when the request is accepted.
func (r *Reader) Stream(ctx context.Context, pod *v1.Pod, req *podplanev1.PodLogRequest, send func([]byte) error) error {
	o, err := r.options(req)
	if err != nil {
		return err
	}
	container, err := choose(pod, req.GetContainer())
	if err != nil {
		return err
	}
	// Whoever follows must not miss the end of the container between looking at the status and waiting for its change.
	var changes <-chan struct{}
	if o.follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		changes = r.statuses.Changes(ctx, string(pod.UID))
	}
	number, err := instance(pod.Name, container, r.status(string(pod.UID)), req.GetPrevious())
	if err != nil {
		return err
	}
	l, err := r.open(pod, container, number)
	if err != nil {
		return err
	}
	defer l.close()
	out := &output{options: o, send: send, left: o.limit}
	if err := l.seekTail(o.tail); err != nil {
		return err
	}
	if err := send(nil); err != nil {
		return err
	}
	l.over = func() bool { return r.over(string(pod.UID), container, number) }
	if err = l.copy(ctx, out, o.follow, changes); err == nil {
		err = out.flush()
	}
	if errors.Is(err, errLimit) {
		err = nil
	}
	return err
}

type options struct {
	follow, timestamps bool
	tail               int64 // below 0: everything
	limit              int64 // below 0: none
	since              time.Time
}

func (r *Reader) options(req *podplanev1.PodLogRequest) (options, error) {
	o := options{follow: req.GetFollow(), timestamps: req.GetTimestamps(), tail: -1, limit: -1}
	invalid := func(name, rule string) error { return fault.New(fault.Invalid, "%s: must be %s", name, rule) }
	if req.TailLines != nil {
		if o.tail = req.GetTailLines(); o.tail < 0 {
			return o, invalid("tailLines", "greater than or equal to 0")
		}
	}
	if req.LimitBytes != nil {
		if o.limit = req.GetLimitBytes(); o.limit < 1 {
			return o, invalid("limitBytes", "greater than 0")
		}
	}
	if req.SinceSeconds != nil && req.GetSinceTime() != "" {
		return o, fault.New(fault.Invalid, "sinceSeconds: at most one of `sinceTime` or `sinceSeconds` may be specified")
	}
	if req.SinceSeconds != nil {
		n := req.GetSinceSeconds()
		if n < 1 {
			return o, invalid("sinceSeconds", "greater than 0")
		}
		o.since = r.now().Add(-time.Duration(min(n, maxSinceSeconds)) * time.Second)
	}
	if t := req.GetSinceTime(); t != "" {
		since, err := time.Parse(time.RFC3339, t)
		if err != nil {
			return o, invalid("sinceTime", "an RFC 3339 time")
		}
		o.since = since
	}
	return o, nil
}

const maxSinceSeconds = 100 * 365 * 24 * 60 * 60

func (r *Reader) status(uid string) *v1.PodStatus {
	rec, ok := r.statuses.Status(uid)
	if !ok {
		return &v1.PodStatus{}
	}
	s := new(v1.PodStatus)
	if err := json.Unmarshal(rec.GetStatus(), s); err != nil {
		r.log.WarnContext(telemetry.ContextWithRecord(context.Background(), rec), "a pod's status can't be read", slog.Any("error", err))
	}
	return s
}

// over says whether an instance of a container writes no more.
func (r *Reader) over(uid, container string, number int32) bool {
	rec, ok := r.statuses.Status(uid)
	if !ok || rec.GetPhase() == podplanev1.WorkerPhase_WORKER_PHASE_TERMINATED {
		return true
	}
	c := find(r.status(uid), container)
	return c == nil || c.RestartCount > number || c.State.Running == nil
}

// open opens the log of one instance of a container.
func (r *Reader) open(pod *v1.Pod, container string, number int32) (*file, error) {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return nil, fault.New(fault.NotFound, "open the directory of the pods' logs: %w", err)
	}
	dir := path.Join(pod.Namespace+"_"+pod.Name+"_"+string(pod.UID), container)
	if !filepath.IsLocal(dir) {
		return nil, errors.Join(fault.New(fault.BadRequest, "pod %q has no log directory of its own", pod.Name), root.Close())
	}
	l := &file{root: root, name: path.Join(dir, strconv.Itoa(int(number))+".log"), dir: filepath.Join(r.dir, dir)}
	if err := l.reopen(); err != nil {
		l.close()
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.NotFound, "the log of container %q in pod %q is not there: %w", container, pod.Name, err)
		}
		return nil, fmt.Errorf("open the log of container %q in pod %q: %w", container, pod.Name, err)
	}
	return l, nil
}

var errLimit = errors.New("as many bytes as were asked for")

// output turns log lines into what was asked for, and sends it in pieces.
type output struct {
	options
	send func([]byte) error
	left int64
	data []byte
	// middle says that the last piece did not end its line.
	middle bool
	skip   bool // what is in the middle is older than asked for
}

const pieceBytes = 32 << 10

// piece takes a part of a line. first and last say whether it begins and ends the container's line.
func (o *output) piece(at []byte, text []byte, last bool) error {
	if !o.middle {
		o.skip = false
		if !o.since.IsZero() {
			t, err := time.Parse(time.RFC3339Nano, string(at))
			o.skip = err == nil && t.Before(o.since)
		}
		if o.timestamps && !o.skip {
			o.data = append(append(o.data, at...), ' ')
		}
	}
	o.middle = !last
	if o.skip {
		return nil
	}
	o.data = append(o.data, text...)
	if last {
		o.data = append(o.data, '\n')
	}
	if len(o.data) >= pieceBytes || (o.left >= 0 && int64(len(o.data)) >= o.left) {
		return o.flush()
	}
	return nil
}

// flush sends what is there. The receiver keeps it.
func (o *output) flush() error {
	if o.left >= 0 && int64(len(o.data)) >= o.left {
		o.data = o.data[:o.left]
	}
	data := o.data
	o.data = nil
	if len(data) > 0 {
		if err := o.send(data); err != nil {
			return err
		}
	}
	if o.left >= 0 {
		if o.left -= int64(len(data)); o.left == 0 {
			return errLimit
		}
	}
	return nil
}
