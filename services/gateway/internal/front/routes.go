package front

import (
	"net/http"
	"slices"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// route is one method and path pattern of the API.
type route struct{ method, pattern string }

// routes reads the API's routes from the protos, the one place that has them.
func routes() []route {
	var out []route
	protoregistry.GlobalFiles.RangeFilesByPackage(podplanev1.File_podplane_v1_records_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				if rule, ok := proto.GetExtension(methods.Get(j).Options(), annotations.E_Http).(*annotations.HttpRule); ok {
					out = appendRoutes(out, rule)
				}
			}
		}
		return true
	})
	slices.SortFunc(out, func(a, b route) int {
		if a.pattern != b.pattern {
			if a.pattern < b.pattern {
				return -1
			}
			return 1
		}
		if a.method < b.method {
			return -1
		}
		return 1
	})
	return out
}

func appendRoutes(out []route, rule *annotations.HttpRule) []route {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		out = append(out, route{http.MethodGet, p.Get})
	case *annotations.HttpRule_Put:
		out = append(out, route{http.MethodPut, p.Put})
	case *annotations.HttpRule_Post:
		out = append(out, route{http.MethodPost, p.Post})
	case *annotations.HttpRule_Delete:
		out = append(out, route{http.MethodDelete, p.Delete})
	case *annotations.HttpRule_Patch:
		out = append(out, route{http.MethodPatch, p.Patch})
	}
	for _, more := range rule.GetAdditionalBindings() {
		out = appendRoutes(out, more)
	}
	return out
}
