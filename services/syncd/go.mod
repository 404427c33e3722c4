module github.com/podplane/podplane/services/syncd

go 1.26.0
