package cri

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/podplane/podplane/internal/fault"
)

// CRI says nothing about a pull that is under way. containerd does, in its own API on the same socket: its content store lists what is being written.
const containerdListStatuses = "/containerd.services.content.v1.Content/ListStatuses"

// Download is one blob of an image that the runtime is downloading, or was when a pull was cut short.
type Download struct {
	// Ref is the runtime's name for it.
	Ref                  string
	StartedAt, UpdatedAt time.Time
	// Offset is how many bytes are there, Total how many there will be, 0 when that is not known.
	Offset, Total int64
}

// Downloads implements [DownloadLister] for containerd.
func (c *Client) Downloads(ctx context.Context) ([]Download, error) {
	op := c.runtimeOp(opListDownloads, "").within(c.timeouts.Inspect)
	ctx = metadata.AppendToOutgoingContext(ctx, containerdNamespaceHeader, containerdNamespace)
	// Both messages are read and written by hand: an empty request, and an answer whose fields are all unknown to this type.
	resp, err := invoke(ctx, c, op, func(ctx context.Context, in *emptypb.Empty, opts ...grpc.CallOption) (*emptypb.Empty, error) {
		out := new(emptypb.Empty)
		return out, c.conn.Invoke(ctx, containerdListStatuses, in, out, opts...)
	}, &emptypb.Empty{})
	if err != nil {
		return nil, err
	}
	list, err := decodeDownloads(resp.ProtoReflect().GetUnknown())
	if err != nil {
		return nil, &CallError{Op: op.name, Err: fault.Wrap(fault.Internal, err)}
	}
	return list, nil
}

var errDownloads = errors.New("the runtime's list of downloads can't be decoded")

// decodeDownloads reads containerd's ListContentStatusesResponse: repeated Status statuses = 1.
func decodeDownloads(raw []byte) ([]Download, error) {
	var list []Download
	for len(raw) > 0 {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil, errDownloads
		}
		raw = raw[n:]
		if field != 1 || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, raw); n < 0 {
				return nil, errDownloads
			}
			raw = raw[n:]
			continue
		}
		message, n := protowire.ConsumeBytes(raw)
		if n < 0 {
			return nil, errDownloads
		}
		raw = raw[n:]
		d, err := decodeDownload(message)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}

// decodeDownload reads a Status: started_at = 1, updated_at = 2, ref = 3, offset = 4, total = 5.
func decodeDownload(raw []byte) (Download, error) {
	var d Download
	for len(raw) > 0 {
		field, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return d, errDownloads
		}
		value := raw[n:]
		size := protowire.ConsumeFieldValue(field, kind, value)
		if size < 0 {
			return d, errDownloads
		}
		raw = value[size:]
		switch {
		case kind == protowire.BytesType:
			text, _ := protowire.ConsumeBytes(value)
			switch field {
			case 1, 2:
				var t timestamppb.Timestamp
				if err := proto.Unmarshal(text, &t); err != nil {
					return d, errDownloads
				}
				if field == 1 {
					d.StartedAt = t.AsTime()
				} else {
					d.UpdatedAt = t.AsTime()
				}
			case 3:
				d.Ref = string(text)
			}
		case kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			switch field {
			case 4:
				d.Offset = int64(v)
			case 5:
				d.Total = int64(v)
			}
		}
	}
	return d, nil
}

var _ DownloadLister = (*Client)(nil)
