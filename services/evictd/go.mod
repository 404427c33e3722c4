module github.com/podplane/podplane/services/evictd

go 1.26.0
