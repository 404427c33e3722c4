module github.com/podplane/podplane/services/pleg

go 1.26.0
