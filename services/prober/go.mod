module github.com/podplane/podplane/services/prober

go 1.26.0
