package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// server is the HTTP server of `app serve`:
//
//	GET  /               a greeting with the pod's host name
//	GET  /healthz        200 "ok" or 503, as the flags and the last POST say
//	POST /healthz?ok=B   from now on, healthz says B
//	GET  /readyz, POST   the same for readiness
//	GET  /env?name=N     a variable of the environment
//	GET  /file?path=P    a file
//	POST /exit?code=N    end the process with that code
//	GET  /headers        the request's headers
//	GET  /redirect?to=U  a redirect
type server struct {
	start          time.Time
	healthyAfter   time.Duration
	unhealthyAfter time.Duration
	delay          time.Duration
	healthy, ready atomic.Pointer[bool]
}

func serve(ctx context.Context, args []string) error {
	s := &server{start: time.Now()}
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	addr := flags.String("addr", ":8080", "address to listen on")
	flags.DurationVar(&s.healthyAfter, "healthy-after", 0, "healthz and readyz say 503 until then")
	flags.DurationVar(&s.unhealthyAfter, "unhealthy-after", 0, "healthz and readyz say 503 from then on; 0 is never")
	flags.DurationVar(&s.delay, "delay", 0, "wait before each answer of healthz and readyz")
	drain := flags.Duration("drain", 0, "go on serving for that long after SIGTERM")
	if err := flags.Parse(args); err != nil {
		return exitError(2)
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	httpServer := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	log.Printf("listening on %s", listener.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Print("terminating")
	time.Sleep(*drain)
	stop, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := httpServer.Shutdown(stop); err != nil {
		return errors.Join(err, httpServer.Close())
	}
	return nil
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintf(w, "hello from %s\n", name)
	})
	mux.HandleFunc("/healthz", s.health(&s.healthy))
	mux.HandleFunc("/readyz", s.health(&s.ready))
	mux.HandleFunc("GET /env", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, os.Getenv(r.FormValue("name")))
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.FormValue("path"))
	})
	mux.HandleFunc("GET /headers", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "Host: %s\n", r.Host)
		if err := r.Header.Write(w); err != nil {
			log.Print(err)
		}
	})
	mux.HandleFunc("GET /redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
	})
	mux.HandleFunc("POST /exit", func(_ http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil {
			code = 1
		}
		os.Exit(code)
	})
	return mux
}

// health answers by the flags until a POST has said otherwise.
func (s *server) health(said *atomic.Pointer[bool]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			ok, err := strconv.ParseBool(r.FormValue("ok"))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			said.Store(&ok)
		} else {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(s.delay):
			}
		}
		age := time.Since(s.start)
		ok := age >= s.healthyAfter && (s.unhealthyAfter == 0 || age < s.unhealthyAfter)
		if p := said.Load(); p != nil {
			ok = *p
		}
		if !ok {
			http.Error(w, "not ok", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

func tcp(ctx context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = io.WriteString(conn, "hello\n")
		if err = errors.Join(err, conn.Close()); err != nil {
			log.Print(err)
		}
	}
}

func get(ctx context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}

func dial(ctx context.Context, args []string) error {
	if err := want(args, 1, 1); err != nil {
		return err
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", args[0])
	if err != nil {
		return err
	}
	return conn.Close()
}
