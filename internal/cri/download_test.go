package cri

import (
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// wireDownload encodes a status as containerd does.
func wireDownload(d Download) []byte {
	stamp := func(t time.Time) []byte {
		raw, err := proto.Marshal(timestamppb.New(t))
		if err != nil {
			panic(err)
		}
		return raw
	}
	var m []byte
	m = protowire.AppendBytes(protowire.AppendTag(m, 1, protowire.BytesType), stamp(d.StartedAt))
	m = protowire.AppendBytes(protowire.AppendTag(m, 2, protowire.BytesType), stamp(d.UpdatedAt))
	m = protowire.AppendString(protowire.AppendTag(m, 3, protowire.BytesType), d.Ref)
	m = protowire.AppendVarint(protowire.AppendTag(m, 4, protowire.VarintType), uint64(d.Offset))
	m = protowire.AppendVarint(protowire.AppendTag(m, 5, protowire.VarintType), uint64(d.Total))
	m = protowire.AppendString(protowire.AppendTag(m, 6, protowire.BytesType), "expected")
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), m)
}

func TestDecodeDownloads(t *testing.T) {
	at := time.Unix(1700000000, 5).UTC()
	want := []Download{{Ref: "layer-1", StartedAt: at, UpdatedAt: at.Add(time.Second), Offset: 5, Total: 10}, {Ref: "layer-2", StartedAt: at, UpdatedAt: at}}
	var raw []byte
	for _, d := range want {
		raw = append(raw, wireDownload(d)...)
	}
	raw = protowire.AppendVarint(protowire.AppendTag(raw, 9, protowire.VarintType), 1) // a field of later versions
	got, err := decodeDownloads(raw)
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := decodeDownloads(raw[:len(raw)-4]); err == nil {
		t.Error("a message that was cut short is taken")
	}
}

func FuzzDecodeDownloads(f *testing.F) {
	f.Add(wireDownload(Download{Ref: "x", Offset: 1, Total: 2}))
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		list, err := decodeDownloads(raw)
		if err != nil && len(list) > 0 {
			t.Errorf("%d downloads with an error", len(list))
		}
	})
}
