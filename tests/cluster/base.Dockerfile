# Stands for the public image of the same name where no image registry is asked: the same distribution, with what the
# Dockerfiles would otherwise install into it.
FROM scratch
ADD root.tar /
CMD ["bash"]
