module github.com/podplane/podplane/internal

go 1.26.0
