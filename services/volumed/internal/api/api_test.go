package api_test

import (
	"context"
	"strings"
	"testing"

	"github.com/podplane/podplane/internal/fault"
	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
	"github.com/podplane/podplane/services/volumed/internal/api"
)

// source holds records by "namespace/name/uid".
type source struct {
	keys []string
	err  error
}

func (s source) Records(_ context.Context, _ string, match func(namespace, name, uid string) bool) ([]*podplanev1.VolumesRecord, error) {
	var list []*podplanev1.VolumesRecord
	for _, k := range s.keys {
		p := strings.Split(k, "/")
		if match(p[0], p[1], p[2]) {
			list = append(list, &podplanev1.VolumesRecord{Namespace: p[0], Name: p[1], Uid: p[2]})
		}
	}
	return list, s.err
}

func TestListVolumes(t *testing.T) {
	t.Parallel()
	srv := api.New(source{keys: []string{"b/x/3", "a/y/2", "a/x/1"}})
	for _, c := range []struct {
		req  *podplanev1.ListVolumesRequest
		want string
	}{
		{&podplanev1.ListVolumesRequest{}, "123"},
		{&podplanev1.ListVolumesRequest{Namespace: "a"}, "12"},
		{&podplanev1.ListVolumesRequest{Name: "x"}, "13"},
		{&podplanev1.ListVolumesRequest{Uid: "2"}, "2"},
		{&podplanev1.ListVolumesRequest{Namespace: "b", Name: "y"}, ""},
	} {
		resp, err := srv.ListVolumes(t.Context(), c.req)
		got := ""
		for _, v := range resp.GetVolumes() {
			got += v.GetUid()
		}
		if err != nil || got != c.want {
			t.Errorf("%v: got %s, %v, want %s", c.req, got, err, c.want)
		}
	}
	if _, err := api.New(source{err: fault.New(fault.Unavailable, "stopping")}).ListVolumes(t.Context(), nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}
