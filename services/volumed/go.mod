module github.com/podplane/podplane/services/volumed

go 1.26.0

require (
	github.com/podplane/podplane/internal v0.0.0
	github.com/podplane/podplane/proto v0.0.0
)

require (
	github.com/moby/sys/mountinfo v0.7.3 // indirect
	golang.org/x/sys v0.49.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/api v0.36.3 // indirect
	k8s.io/apimachinery v0.36.3 // indirect
)

replace (
	github.com/podplane/podplane/internal => ../../internal
	github.com/podplane/podplane/proto => ../../proto
)
