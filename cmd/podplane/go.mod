module github.com/podplane/podplane/cmd/podplane

go 1.26.0

require (
	github.com/spf13/cobra v1.10.2
	k8s.io/api v0.36.3
	k8s.io/apimachinery v0.36.3
	sigs.k8s.io/yaml v1.6.0
)
