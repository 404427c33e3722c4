package front_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podplane/podplane/internal/daemon"
	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

func TestWatchIsFlushedAndBreaksWithAnErrorEvent(t *testing.T) {
	next := make(chan struct{})
	var got *podplanev1.ListRequest
	h := newFront(t, &backend{list: func(r *podplanev1.ListRequest, s bodyStream) error {
		got = r
		if err := s.Send(chunk("application/json", `{"type":"ADDED"}`+"\n")); err != nil {
			return err
		}
		<-next
		if err := s.Send(chunk("", `{"type":"DELETED"}`+"\n")); err != nil {
			return err
		}
		<-next
		return fault.New(fault.Expired, "too old a version")
	}})
	resp := open(t, h, pods+"?watch=true&labelSelector=a%3Db&fieldSelector=x&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=9&unknown=1")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	lines := bufio.NewReader(resp.Body)
	expect := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != want+"\n" {
			t.Fatalf("got %q %v, want %s", line, err, want)
		}
	}
	expect(`{"type":"ADDED"}`)
	next <- struct{}{}
	expect(`{"type":"DELETED"}`)
	next <- struct{}{}
	line, err := lines.ReadString('\n')
	var event struct {
		Type   string
		Object metav1.Status
	}
	if err != nil || json.Unmarshal([]byte(line), &event) != nil || event.Type != "ERROR" || event.Object.Code != 410 || event.Object.Kind != "Status" {
		t.Errorf("got %q %v", line, err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) != 0 {
		t.Errorf("after the error: %q %v", rest, err)
	}
	if got.GetLabelSelector() != "a=b" || got.GetFieldSelector() != "x" || got.GetResourceVersion() != "7" || !got.GetAllowWatchBookmarks() || got.GetTimeoutSeconds() != 9 || !got.GetWatch() {
		t.Errorf("arguments %v", got)
	}
}

func TestWatchStandsBeforeAnythingHappens(t *testing.T) {
	quiet := make(chan struct{})
	h := newFront(t, &backend{
		list: func(_ *podplanev1.ListRequest, s bodyStream) error {
			if err := s.SendHeader(nil); err != nil {
				return err
			}
			<-quiet
			return fault.New(fault.Expired, "too slow")
		},
		log: func(_ *podplanev1.PodLogRequest, s bodyStream) error {
			if err := s.SendHeader(nil); err != nil {
				return err
			}
			<-quiet
			return nil
		},
	})
	watch, log := open(t, h, pods+"?watch=true"), open(t, h, pods+"/a/log?follow=true")
	if watch.StatusCode != 200 || watch.Header.Get("Content-Type") != "application/json" || log.StatusCode != 200 || log.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("watch %d %v, log %d %v", watch.StatusCode, watch.Header, log.StatusCode, log.Header)
	}
	close(quiet)
	if body, err := io.ReadAll(watch.Body); err != nil || !strings.HasPrefix(string(body), `{"type":"ERROR"`) || strings.Count(string(body), "\n") != 1 {
		t.Errorf("watch %q %v", body, err)
	}
	if body, err := io.ReadAll(log.Body); err != nil || len(body) != 0 {
		t.Errorf("log %q %v", body, err)
	}
}

func TestStoppingEndsWatchesQuietly(t *testing.T) {
	h := newFront(t, &backend{list: func(_ *podplanev1.ListRequest, s bodyStream) error {
		if err := s.Send(chunk("application/json", "{}\n")); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}})
	lis := listen(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- daemon.ServeHTTP(ctx, &http.Server{Handler: h}, lis, 10*time.Second) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+pods+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	begin := time.Now()
	stop()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "{}\n" {
		t.Errorf("the watch ended with %q %v", body, err)
	}
	if err := <-served; err != nil || time.Since(begin) > 5*time.Second {
		t.Errorf("stopping took %v: %v", time.Since(begin), err)
	}
}

func TestLogFollowsAndABrokenOneIsCut(t *testing.T) {
	next := make(chan struct{})
	var got *podplanev1.PodLogRequest
	h := newFront(t, &backend{log: func(r *podplanev1.PodLogRequest, s bodyStream) error {
		got = r
		for _, line := range []string{"one\n", "two"} {
			if err := s.Send(chunk("text/plain", line)); err != nil {
				return err
			}
			<-next
		}
		return fault.New(fault.Internal, "disk gone")
	}})
	resp := open(t, h, pods+"/a/log?follow=true&container=c&tailLines=0&previous=false&sinceSeconds=3&timestamps=true&limitBytes=9")
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/plain" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	buf := make([]byte, 16)
	for _, want := range []string{"one\n", "two"} {
		n, err := resp.Body.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("got %q %v", buf[:n], err)
		}
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err == nil || len(rest) != 0 {
		t.Errorf("a broken log ended like a whole one: %q", rest)
	}
	if got.TailLines == nil || got.GetTailLines() != 0 || got.GetContainer() != "c" || !got.GetFollow() || got.GetSinceSeconds() != 3 || !got.GetTimestamps() || got.GetLimitBytes() != 9 {
		t.Errorf("arguments %v", got)
	}
}

func TestClientThatLeavesEndsTheStream(t *testing.T) {
	ended := make(chan struct{})
	h := newFront(t, &backend{list: func(_ *podplanev1.ListRequest, s bodyStream) error {
		defer close(ended)
		if err := s.Send(chunk("application/json", "x\n")); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}})
	resp := open(t, h, pods+"?watch=true")
	_ = resp.Body.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the stream goes on without a client")
	}
}

func TestLifecycleIsOneObjectALine(t *testing.T) {
	h := newFront(t, &backend{lifecycle: func(r *podplanev1.ListLifecycleRequest, s grpc.ServerStreamingServer[podplanev1.ListLifecycleResponse]) error {
		for _, c := range []string{"a", "b"} {
			if err := s.Send(&podplanev1.ListLifecycleResponse{Event: &podplanev1.LifecycleEvent{Container: c, Uid: r.GetUid()}}); err != nil {
				return err
			}
		}
		return nil
	}})
	w := do(t, h, http.MethodGet, "/podplane/v1/lifecycle?uid=u", "")
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if w.Code != 200 || len(lines) != 2 || !strings.HasPrefix(lines[0], `{"event":{`) || !strings.Contains(lines[1], `"container":"b"`) || !strings.Contains(lines[1], `"uid":"u"`) {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
