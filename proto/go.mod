module github.com/podplane/podplane/proto

go 1.26.0
