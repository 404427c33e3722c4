package front

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
)

const (
	// requestTimeout bounds a request that does not stream.
	requestTimeout = 60 * time.Second
	// writeTimeout bounds one write to a client that does not read.
	writeTimeout = 30 * time.Second
)

type exchangeKey struct{}

// exchange is what is known about one request of the API and its answer. It belongs to the request's goroutine.
type exchange struct {
	method        string
	watch, follow bool
	contentType   string // of a stream that has not said anything yet

	err         error // why a stream broke
	quiet       bool  // it ends because the gateway stops
	wroteHeader bool
	answered    bool // the error has been written
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

func (x *exchange) streams() bool { return x.watch || x.follow }

// fail notes why a stream broke.
func (x *exchange) fail(err error, stopping bool) {
	x.err = fault.FromGRPC(err)
	if stopping && fault.Is(x.err, fault.Canceled) {
		x.quiet = true
		x.err = fault.WithRetryAfter(fault.New(fault.Unavailable, "the gateway is shutting down"), time.Second)
	}
}

// exchanging gives each API request its exchange, its time limit and a writer that knows how a stream's error is told.
func exchanging(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{method: r.Method, watch: isTrue(r, "watch"), follow: isTrue(r, "follow"), contentType: jsonType}
		if isLog(r) {
			x.contentType = textType
		}
		ctx := context.WithValue(r.Context(), exchangeKey{}, x)
		var cancel context.CancelFunc
		if x.streams() {
			ctx, cancel = context.WithCancel(ctx)
			defer context.AfterFunc(daemon.Stopping(ctx), cancel)()
		} else {
			ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		}
		defer cancel()
		next.ServeHTTP(&answer{ResponseWriter: w, x: x, control: http.NewResponseController(w)}, r.WithContext(ctx))
		if x.err != nil && x.wroteHeader && !x.answered && !x.quiet {
			panic(http.ErrAbortHandler) // part of the answer is out: the client must see that it is cut
		}
	})
}

func isTrue(r *http.Request, parameter string) bool {
	on, err := strconv.ParseBool(r.URL.Query().Get(parameter))
	return err == nil && on
}

// answer is the response writer of an exchange. grpc-gateway would tell a stream's error with gRPC's codes in a frame of its own; here it
// becomes a Status with Kubernetes' code before the first byte, an ERROR event in a watch, and a broken connection elsewhere.
type answer struct {
	http.ResponseWriter
	x       *exchange
	control *http.ResponseController
}

// WriteHeader starts the answer.
func (a *answer) WriteHeader(code int) {
	if a.x.wroteHeader {
		return
	}
	a.x.wroteHeader = true
	if a.x.err != nil {
		a.x.answered = true
		writeStatus(a.ResponseWriter, fault.ToStatus(a.x.err))
		return
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write goes on with it. After an error nothing but the error goes out.
func (a *answer) Write(p []byte) (int, error) {
	if !a.x.wroteHeader {
		a.WriteHeader(http.StatusOK)
	}
	if a.x.err != nil {
		if a.x.watch && !a.x.answered && !a.x.quiet {
			a.x.answered = true
			if _, err := a.write(watchError(fault.ToStatus(a.x.err))); err != nil {
				return 0, err
			}
		}
		return len(p), nil
	}
	return a.write(p)
}

func (a *answer) write(p []byte) (int, error) {
	_ = a.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every server has one
	return a.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController flush.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
