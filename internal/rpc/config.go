package rpc

import (
	"encoding/json"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

type methodName struct {
	Service string `json:"service"`
	Method  string `json:"method"`
}

type retryPolicy struct {
	MaxAttempts          int      `json:"maxAttempts"`
	InitialBackoff       string   `json:"initialBackoff"`
	MaxBackoff           string   `json:"maxBackoff"`
	BackoffMultiplier    float64  `json:"backoffMultiplier"`
	RetryableStatusCodes []string `json:"retryableStatusCodes"`
}

type methodConfig struct {
	Name  []methodName `json:"name"`
	Retry *retryPolicy `json:"retryPolicy,omitempty"`
}

type channelConfig struct {
	LoadBalancing []map[string]struct{} `json:"loadBalancingConfig"`
	Methods       []methodConfig        `json:"methodConfig,omitempty"`
}

// serviceConfig spreads calls over the replicas that are reachable and tries again what only reads.
var serviceConfig = sync.OnceValue(func() string {
	c := channelConfig{LoadBalancing: []map[string]struct{}{{"round_robin": {}}}}
	if names := readingMethods(); len(names) > 0 {
		c.Methods = []methodConfig{{Name: names, Retry: &retryPolicy{
			MaxAttempts: 4, InitialBackoff: "0.05s", MaxBackoff: "0.5s", BackoffMultiplier: 2, RetryableStatusCodes: []string{"UNAVAILABLE"},
		}}}
	}
	out, err := json.Marshal(c)
	if err != nil {
		return "{}"
	}
	return string(out)
})

// readingMethods lists the methods of Podplane's services that change nothing, by their names.
func readingMethods() []methodName {
	var names []methodName
	protoregistry.GlobalFiles.RangeFilesByPackage(podplanev1.File_podplane_v1_records_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				if m := string(s.Methods().Get(j).Name()); reads(m) {
					names = append(names, methodName{Service: string(s.FullName()), Method: m})
				}
			}
		}
		return true
	})
	return names
}

func reads(method string) bool {
	for _, verb := range []string{"Get", "List", "Rank"} {
		if strings.HasPrefix(method, verb) {
			return true
		}
	}
	return false
}
