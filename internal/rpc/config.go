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

type healthCheck struct {
	ServiceName string `json:"serviceName"`
}

type channelConfig struct {
	LoadBalancing []map[string]struct{} `json:"loadBalancingConfig"`
	Methods       []methodConfig        `json:"methodConfig,omitempty"`
	Health        *healthCheck          `json:"healthCheckConfig,omitempty"`
}

// serviceConfig spreads calls over the replicas that are reachable and tries again what only reads. Where an identity is given, only
// what says by the health service that it is that one is called: the port of a replica that died may be anybody's by now.
func serviceConfig(identity string) string {
	c := channelConfig{LoadBalancing: []map[string]struct{}{{"round_robin": {}}}, Methods: retries()}
	if identity != "" {
		c.Health = &healthCheck{ServiceName: identity}
	}
	out, err := json.Marshal(c)
	if err != nil {
		return "{}"
	}
	return string(out)
}

// identity is the name under which the health service of a replica answers for a service, on one node if one is named.
func identity(service, node string) string {
	if node == "" {
		return "podplane/" + service
	}
	return "podplane/" + service + "@" + node
}

var retries = sync.OnceValue(func() []methodConfig {
	names := readingMethods()
	if len(names) == 0 {
		return nil
	}
	return []methodConfig{{Name: names, Retry: &retryPolicy{
		MaxAttempts: 4, InitialBackoff: "0.05s", MaxBackoff: "0.5s", BackoffMultiplier: 2, RetryableStatusCodes: []string{"UNAVAILABLE"},
	}}}
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
