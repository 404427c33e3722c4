module github.com/podplane/podplane/test

go 1.26.0
