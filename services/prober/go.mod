module github.com/podplane/podplane/services/prober

go 1.26.0

require (
	github.com/podplane/podplane/internal v0.0.0
	github.com/podplane/podplane/proto v0.0.0
)

replace (
	github.com/podplane/podplane/internal => ../../internal
	github.com/podplane/podplane/proto => ../../proto
)
