package front

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"google.golang.org/grpc"

	"github.com/podplane/podplane/internal/fault"
	"github.com/podplane/podplane/internal/telemetry"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/gateway/internal/access"
	"github.com/podplane/podplane/services/gateway/internal/audit"
	"github.com/podplane/podplane/services/gateway/internal/limit"
)

const (
	// recheckEvery is how often it is looked whether who follows a stream still may.
	recheckEvery = 500 * time.Millisecond
	// openPath is the one that nobody has to be known for.
	openPath = "/healthz"

	// failuresPerSecond and failuresAtOnce bound, for each address, how many failed attempts to authenticate are answered as such.
	failuresPerSecond = 10
	failuresAtOnce    = 50
)

// Guard is what stands at the door. The zero value lets everybody in and writes nothing down.
type Guard struct {
	// Access knows users and roles; nil lets everybody do everything.
	Access *access.Access
	// Audit takes a line for each request; nil writes none.
	Audit *audit.Log
	// Rate bounds the requests of each user, or address where users are not known; nil does not.
	Rate *limit.Limiter
}

type callerKey struct{}

// caller is what is known about who sends a request. It belongs to the request's goroutine until the handler returns.
type caller struct {
	id    access.Identity
	wants access.Attributes
	rpc   string // the gRPC method that the request is allowed to call
	why   string // it was refused
	begin time.Time
	// unheard keeps a stranger who is told to wait out of the audit log, which would otherwise be pushed out of its bounds by one.
	unheard bool
}

func callerOf(ctx context.Context) *caller {
	c, _ := ctx.Value(callerKey{}).(*caller)
	return c
}

// called gives each request its caller, before anything looks at the request: those who do look at it again afterwards.
func called(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &caller{wants: access.ForPath(r.Method, r.URL.Path), begin: time.Now()}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// audited writes down who did what, when it is over; nothing about openPath.
func audited(log *audit.Log) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if log == nil || isOpen(r) {
				next.ServeHTTP(w, r)
				return
			}
			c := callerOf(r.Context())
			sent := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			defer func() {
				if !c.unheard {
					log.Write(c.entry(r, "answered", sent.Status()))
				}
			}()
			next.ServeHTTP(sent, r)
		})
	}
}

func (c *caller) entry(r *http.Request, stage string, code int) audit.Entry {
	return audit.Entry{
		Time: time.Now().UTC(), Stage: stage, User: c.id.User, Groups: c.id.Groups, Via: c.id.Via,
		Verb: c.wants.Verb, APIGroup: c.wants.Group, Resource: c.wants.Resource, Subresource: c.wants.Subresource,
		Namespace: c.wants.Namespace, Name: c.wants.Name, Path: c.wants.Path, Code: code, Reason: c.why, Seconds: time.Since(c.begin).Seconds(),
		TraceID: telemetry.TraceID(r.Context()), RequestID: r.Header.Get(requestIDHeader), Source: r.RemoteAddr, UserAgent: r.UserAgent(),
	}
}

func isOpen(r *http.Request) bool {
	return r.Method == http.MethodGet && r.URL.Path == openPath && r.URL.RawPath == ""
}

// authenticated finds who the caller is, and refuses who is nobody everything but openPath. Strangers that keep trying are told to wait; who
// shows something valid is let in whatever others at the same address do.
func authenticated(a *access.Access) func(http.Handler) http.Handler {
	failures := limit.New(failuresPerSecond, failuresAtOnce)
	return func(next http.Handler) http.Handler {
		if a == nil {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isOpen(r) {
				next.ServeHTTP(w, r)
				return
			}
			c := callerOf(r.Context())
			id, err := a.Authenticate(r)
			if err == nil {
				c.id = id
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Connection", "close") // a stranger's body is not read
			if wait := failures.Take(address(r), time.Now()); wait > 0 {
				c.unheard = true
				c.refuse(w, tooMany(wait, "too many failed attempts to authenticate from "+address(r)))
				return
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="podplane"`)
			c.refuse(w, fault.New(fault.Unauthenticated, "Unauthorized: %w", err))
		})
	}
}

// refuse answers with what is wrong and notes it for the audit log.
func (c *caller) refuse(w http.ResponseWriter, err error) {
	c.why = err.Error()
	writeStatus(w, fault.ToStatus(err))
}

func tooMany(wait time.Duration, message string) error {
	return fault.WithRetryAfter(fault.New(fault.ResourceExhausted, "%s", message), wait)
}

// address is the caller's, without its port.
func address(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// rated bounds how often each user, or each address where users are not known, may ask.
func rated(l *limit.Limiter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if l == nil {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := callerOf(r.Context())
			key, who := "address:"+address(r), "requests from "+address(r)
			if c.id.User != "" {
				key, who = "user:"+c.id.User, "requests of user "+c.id.User
			}
			if c.id.Via != "local" && !isOpen(r) {
				if wait := l.Take(key, time.Now()); wait > 0 {
					c.refuse(w, tooMany(wait, "too many "+who))
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// guardPath lets through who may read the path of something that is no resource.
func guardPath(a *access.Access) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if a == nil {
			return next
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := callerOf(r.Context())
			if !isOpen(r) {
				if err := a.Authorize(c.id, c.wants); err != nil {
					c.refuse(w, err)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// guardRoute lets through who may do what a route of the API does, and ends a stream soon after its reader may no longer read.
func guardRoute(g Guard, rpcs map[route]string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := callerOf(r.Context())
			params := access.Params{
				Method: r.Method, Pattern: routeOf(r), Namespace: param(r, "namespace"), Name: param(r, "name"),
				Filter: r.URL.Query()["namespace"], Watch: isTrue(r, "watch"),
			}
			c.wants, c.rpc = access.ForRoute(params), rpcs[route{r.Method, params.Pattern}]
			if g.Access == nil {
				next.ServeHTTP(w, r)
				return
			}
			if err := g.Access.Authorize(c.id, c.wants); err != nil {
				c.refuse(w, err)
				return
			}
			if !params.Watch && !isTrue(r, "follow") {
				next.ServeHTTP(w, r)
				return
			}
			if g.Audit != nil {
				g.Audit.Write(c.entry(r, "started", 0))
			}
			// Later steps change the headers while recheck reads: it has what was shown for itself.
			shown := &http.Request{Header: http.Header{"Authorization": slices.Clone(r.Header.Values("Authorization"))}, TLS: r.TLS}
			ctx, cancel := context.WithCancelCause(r.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				recheck(ctx, cancel, g.Access, shown, c.wants)
			}()
			defer func() { cancel(nil); <-done }()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// recheck ends a stream when its reader is no longer known or no longer allowed.
func recheck(ctx context.Context, cancel context.CancelCauseFunc, a *access.Access, shown *http.Request, wants access.Attributes) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		id, err := a.Authenticate(shown)
		if err == nil {
			err = a.Authorize(id, wants)
		}
		if err != nil {
			cancel(err)
			return
		}
	}
}

// param is a decoded parameter of the path.
func param(r *http.Request, name string) string {
	value := chi.URLParam(r, name)
	if r.URL.RawPath == "" {
		return value
	}
	if decoded, err := url.PathUnescape(value); err == nil {
		return decoded
	}
	return value
}

// confirm makes sure that what goes to a service is what the caller was allowed: HTTP's side decided by the path, and should the two ever
// read one path in two ways, nothing is sent.
func confirm(ctx context.Context, method string, request any) error {
	c := callerOf(ctx)
	if c == nil {
		return fault.New(fault.PermissionDenied, "forbidden: nobody was asked whether %s may be called", method)
	}
	namespace, name := c.wants.Namespace, c.wants.Name
	if x, ok := request.(interface{ GetNamespace() string }); ok && x.GetNamespace() != namespace {
		return fault.New(fault.PermissionDenied, "forbidden: the request is about the namespace %q and another was asked about", x.GetNamespace())
	}
	if x, ok := request.(interface{ GetName() string }); ok && name != "" && x.GetName() != name {
		return fault.New(fault.PermissionDenied, "forbidden: the request is about %q and another was asked about", x.GetName())
	}
	if c.rpc != strings.TrimPrefix(method, "/") {
		return fault.New(fault.PermissionDenied, "forbidden: the request would call %s and %s was asked about", method, c.rpc)
	}
	return nil
}

// guardedConn confirms every call.
type guardedConn struct{ grpc.ClientConnInterface }

// Invoke makes a call with one answer.
func (g guardedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if err := confirm(ctx, method, args); err != nil {
		return fault.ToGRPC(err)
	}
	return g.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

// NewStream makes a call with many.
func (g guardedConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := g.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &guardedStream{ClientStream: s, method: method}, nil
}

type guardedStream struct {
	grpc.ClientStream
	method string
}

// SendMsg sends what was confirmed.
func (s *guardedStream) SendMsg(m any) error {
	if err := confirm(s.Context(), s.method, m); err != nil {
		return fault.ToGRPC(err)
	}
	return s.ClientStream.SendMsg(m)
}

// guardedServices confirms the calls that this process answers itself.
type guardedServices struct {
	podplanev1.ServiceServiceServer
}

// ListServices answers which replicas run.
func (g guardedServices) ListServices(ctx context.Context, r *podplanev1.ListServicesRequest) (*podplanev1.ListServicesResponse, error) {
	if err := confirm(ctx, podplanev1.ServiceService_ListServices_FullMethodName, r); err != nil {
		return nil, err
	}
	return g.ServiceServiceServer.ListServices(ctx, r)
}
