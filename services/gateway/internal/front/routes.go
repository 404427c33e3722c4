package front

import (
	"net/http"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	podplanev1 "github.com/podplane/podplane/proto/podplane/v1"
)

// route is one method and path pattern of the API.
type route struct{ method, pattern string }

// routes reads the API's routes from the protos, the one place that has them, and the gRPC method that each calls.
func routes() map[route]string {
	out := map[route]string{}
	protoregistry.GlobalFiles.RangeFilesByPackage(podplanev1.File_podplane_v1_records_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				if rule, ok := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule); ok {
					addRoutes(out, rule, string(service.FullName())+"/"+string(m.Name()))
				}
			}
		}
		return true
	})
	return out
}

func addRoutes(out map[route]string, rule *annotations.HttpRule, rpc string) {
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		out[route{http.MethodGet, p.Get}] = rpc
	case *annotations.HttpRule_Put:
		out[route{http.MethodPut, p.Put}] = rpc
	case *annotations.HttpRule_Post:
		out[route{http.MethodPost, p.Post}] = rpc
	case *annotations.HttpRule_Delete:
		out[route{http.MethodDelete, p.Delete}] = rpc
	case *annotations.HttpRule_Patch:
		out[route{http.MethodPatch, p.Patch}] = rpc
	}
	for _, more := range rule.GetAdditionalBindings() {
		addRoutes(out, more, rpc)
	}
}
