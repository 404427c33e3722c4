module github.com/podplane/podplane/cmd/podplane

go 1.26.0
